// A candidate of etcd's election interface, for `redlatch bench --election`:
// node etcd.js URL TTL_MS
//
// It campaigns with a lease, as etcd's own client does, and with a new lease once one has expired.
'use strict';

const http = require('http');

const [url, ttl] = process.argv.slice(2);
const seconds = Math.round(Number(ttl) / 1000);
const name = Buffer.from(process.env.ELECTION).toString('base64');
const value = Buffer.from(process.env.CANDIDATE).toString('base64');
const agent = new http.Agent({ keepAlive: true });

function ask(path, body) {
  return new Promise((resolve, reject) => {
    const request = http.request(url + path, { method: 'POST', agent }, (response) => {
      let text = '';
      response.on('data', (part) => (text += part));
      response.on('end', () => {
        const answer = JSON.parse(text);
        if (answer.error) reject(new Error(answer.error));
        else resolve(answer);
      });
    });
    request.on('error', reject);
    request.end(JSON.stringify(body));
  });
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

let resign = () => {};
process.on('SIGUSR1', () => resign());

// Campaigns once, and returns when the candidate has resigned or its lease has expired.
async function campaign() {
  const { ID: lease } = await ask('/v3/lease/grant', { TTL: seconds });
  let renewal;
  const expired = new Promise((_, reject) => {
    const renew = async () => {
      const { result } = await ask('/v3/lease/keepalive', { ID: lease });
      if (!Number(result.TTL)) throw new Error('the lease has expired');
    };
    renewal = setInterval(() => renew().catch(reject), (seconds * 1000) / 3);
  });
  try {
    const won = ask('/v3/election/campaign', { name, lease, value });
    const { leader } = await Promise.race([won, expired]);
    process.stdout.write('leading\n');
    const resigned = new Promise((resolve) => (resign = resolve));
    await Promise.race([resigned, expired]);
    await ask('/v3/election/resign', { leader });
    await pause(seconds * 1000);
  } finally {
    resign = () => {};
    clearInterval(renewal);
    ask('/v3/lease/revoke', { ID: lease }).catch(() => {});
  }
}

async function main() {
  for (;;) {
    await campaign().catch((error) => process.stderr.write(`${error}\n`));
    await pause(100);
  }
}

main();
