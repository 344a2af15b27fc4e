//! What we say to a node: the encoders, and each Lua script beside its SHA1.
//!
//! Scripts answer 1 (done), 0 (the key is absent) or -1 (the key is another's).

/// A Lua script and the SHA1 by which a node knows it once it was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Script {
    /// The source, sent by `EVAL` and `SCRIPT LOAD`.
    pub source: &'static str,
    /// 40 hex digits, sent by `EVALSHA`.
    pub sha1: &'static str,
}

/// Compare-and-delete: `KEYS[1]` the key, `ARGV[1]` the token.
pub const RELEASE: Script = Script {
    source: "local v = redis.call('GET', KEYS[1]) \
             if not v then return 0 end \
             if v ~= ARGV[1] then return -1 end \
             redis.call('DEL', KEYS[1]) return 1",
    sha1: "e40f3e9065d7e93e8da245f486ebd4a5e00ac5b9",
};

/// Prolongs the own key and never shortens it: `ARGV[1]` the token, `ARGV[2]` the ttl in milliseconds.
///
/// `PEXPIRE`, not `SET`: it works when memory is full.
pub const EXTEND: Script = Script {
    source: "local v = redis.call('GET', KEYS[1]) \
             if not v then return 0 end \
             if v ~= ARGV[1] then return -1 end \
             if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then \
             redis.call('PEXPIRE', KEYS[1], ARGV[2]) end \
             return 1",
    sha1: "af1a383f43e82fcad9ae643947078c813a62c73d",
};
