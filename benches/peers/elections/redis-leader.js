// A candidate of npm's redis-leader, on one Redis server, for `redlatch bench --election`:
// node redis-leader.js PORT TTL_MS
'use strict';

const Leader = require('redis-leader');
const redis = require('redis');

const [port, ttl] = process.argv.slice(2).map(Number);
// As often as this library's own default: a tenth of its ttl.
const leader = new Leader(redis.createClient(port), { ttl, wait: ttl / 10, key: process.env.ELECTION });

leader.on('elected', () => process.stdout.write('leading\n'));
leader.on('error', (error) => process.stderr.write(`${error}\n`));
process.on('SIGUSR1', () => {
  leader.stop();
  // It has no pause of its own: another candidate would not notice before its next attempt.
  setTimeout(() => leader.elect(), ttl);
});
leader.elect();
