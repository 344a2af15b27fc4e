//! Random sequences of steps: a table of commands with blanks, and what is filled into the blanks.
//!
//! The hazard is a ttl that ends early or late on a slow machine. So there are only two: `SOON`
//! ends during a step that waits for it, and `LATER` is longer than any test.

use proptest::prelude::*;

use redlatch::proto::command::{DELETE_SEEN, EXTEND, MARK, RELEASE, Script};
use redlatch::proto::sets::{ACQUIRE, ADOPT, EXTEND_SET, RELEASE_SET};
use redlatch::testing::inside::{HAND_OVER, JOIN};
use redlatch::testing::master::Trouble;

/// The ttl `SOON`, in milliseconds.
pub const SOON: u64 = 50;

#[derive(Debug, Clone)]
pub enum Step {
    /// Requests in one write on a connection. The master gets their bytes in pieces of this size.
    Send {
        on: usize,
        requests: Vec<Request>,
        piece: usize,
    },
    /// Waits until every `SOON` has run out.
    Wait,
    Reconnect {
        on: usize,
    },
    /// Ends the present trouble, and begins this one.
    Trouble(Option<Trouble>),
    Password(bool),
}

#[derive(Debug, Clone)]
pub enum Request {
    Words(Vec<Word>),
    /// Bytes that are sent as they are.
    Raw(&'static str),
}

#[derive(Clone)]
pub enum Word {
    Bytes(Vec<u8>),
    /// The client id of the connection that it is sent on.
    Own,
    /// The client id of the other connection.
    Other,
    /// A ttl longer than any test, and longer each time it is used.
    Later,
    /// A ttl of `SOON` milliseconds.
    Soon,
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Word::Bytes(bytes) => write!(f, "{}", crate::server::show(bytes)),
            Word::Own => f.write_str("OWN"),
            Word::Other => f.write_str("OTHER"),
            Word::Later => f.write_str("LATER"),
            Word::Soon => f.write_str("SOON"),
        }
    }
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    // `CLIENT CACHING YES` registers the keys of the read right after it, so the two go together.
    let caching = request().prop_map(|read| vec![line("CLIENT CACHING YES"), read]);
    let reads = prop_oneof![Just("PTTL k"), Just("GET k"), Just("EXISTS k other k")];
    let registers = reads.prop_map(|read| vec![line("CLIENT CACHING YES"), line(read)]);
    let group = prop_oneof![
        16 => request().prop_map(|request| vec![request]),
        1 => caching,
        4 => registers,
    ];
    let send = (0..2_usize, proptest::collection::vec(group, 1..6), 1..40_usize);
    let send =
        send.prop_map(|(on, groups, piece)| Step::Send { on, requests: groups.concat(), piece });
    let step = prop_oneof![
        60 => send,
        1 => Just(Step::Wait),
        2 => (0..2_usize).prop_map(|on| Step::Reconnect { on }),
        1 => trouble().prop_map(Step::Trouble),
        1 => any::<bool>().prop_map(Step::Password),
    ];
    // Most sequences are about tracking, so most begin by switching it on.
    let handshake = |on| {
        proptest::bool::weighted(0.9).prop_map(move |greets| match greets {
            true => vec![Step::Send { on, requests: vec![line("HELLO 3"), line(OPTIN)], piece: 9 }],
            false => vec![],
        })
    };
    let rest = proptest::collection::vec(step, 1..24);
    (handshake(0), handshake(1), rest)
        .prop_map(|(first, second, rest)| [first, second, rest].concat())
}

/// Members of a line: two waiters without a channel, and one whose channel has no subscriber.
const MEMBER_T: &str = "100000 90000 - m t";
const MEMBER_U: &str = "200000 200000 - m u";
const MEMBER_DEAD: &str = "300000 90000 redlatch:nobody m d";

const OPTIN: &str = "CLIENT TRACKING ON OPTIN";

fn trouble() -> impl Strategy<Value = Option<Trouble>> {
    prop_oneof![
        4 => Just(None),
        1 => Just(Some(Trouble::Busy)),
        1 => Just(Some(Trouble::Misconf)),
        1 => Just(Some(Trouble::NoReplicas)),
        1 => Just(Some(Trouble::OutOfMemory)),
        1 => Just(Some(Trouble::Replica)),
        1 => Just(Some(Trouble::MasterDown)),
    ]
}

/// Commands, each with its weight in the random choice. [`blank`] fills in the words in capitals
/// that it knows.
const COMMANDS: &[(u8, &str)] = &[
    (12, "SET KEY TOKEN NX PX LATER"),
    (4, "SET KEY TOKEN NX PX SOON"),
    (3, "SET KEY TOKEN PX SOON"),
    (3, "SET KEY TOKEN"),
    (2, "SET KEY TOKEN OPTION"),
    (2, "SET k TOKEN KEEPTTL"),
    (3, "SET KEY TOKEN OPTION OPTION"),
    (3, "SET KEY TOKEN OPTION UNIT LATER OPTION"),
    (3, "SET KEY TOKEN OPTION UNIT NUMBER"),
    (1, "SET KEY TOKEN UNIT LATER UNIT LATER"),
    (3, "SET KEY TOKEN XX PX LATER GET"),
    (6, "GET KEY"),
    (3, "GETRANGE KEY INDEX INDEX"),
    (6, "PTTL KEY"),
    (2, "TTL KEY"),
    (3, "EXISTS KEY KEY"),
    (2, "TYPE KEY"),
    (4, "DEL KEY"),
    (1, "DEL KEY KEY KEY"),
    (2, "UNLINK KEY"),
    (2, "LPUSH KEY TOKEN TOKEN"),
    (2, "DBSIZE"),
    (3, "PEXPIRE KEY LATER"),
    (3, "PEXPIRE KEY LATER FLAG"),
    (1, "PEXPIRE KEY LATER FLAG FLAG"),
    (1, "PEXPIRE KEY SOON"),
    (2, "PEXPIRE KEY NUMBER"),
    (8, "EVAL RELEASE 1 KEY TOKEN"),
    (6, "EVALSHA RELEASE_SHA 1 KEY TOKEN"),
    (6, "EVAL EXTEND 1 KEY TOKEN LATER"),
    (6, "EVALSHA EXTEND_SHA 1 KEY TOKEN LATER"),
    (2, "EVAL RELEASE COUNT KEY KEY TOKEN"),
    (2, "EVAL EXTEND COUNT KEY KEY TOKEN LATER"),
    (2, "EVAL EXTEND 1 KEY TOKEN NUMBER"),
    (2, "EVALSHA EXTEND_SHA COUNT KEY KEY TOKEN NUMBER"),
    (6, "EVAL ADOPT 1 KEY TOKEN TOKEN LATER"),
    (1, "EVAL ADOPT COUNT KEY TOKEN TOKEN LATER"),
    (2, "EVAL ADOPT 1 KEY TOKEN TOKEN NUMBER"),
    (1, "EVAL ADOPT 2 KEY KEY TOKEN TOKEN LATER"),
    (2, "EVAL COUNTED 2 KEY KEY TOKEN LATER"),
    (2, "EVAL COUNTED 2 KEY KEY TOKEN NUMBER"),
    (2, "EVAL DROP 2 KEY KEY TOKEN"),
    (8, "EVAL JOIN 2 k LINE TOKEN MEMBER LATER LATER AGAIN"),
    (3, "EVAL JOIN 2 k LINE TOKEN MEMBER LATER LATER AGAIN MEMBER"),
    (6, "EVAL HAND 2 k LINE TOKEN WAITER MEMBER"),
    (4, "EVAL HAND 2 k LINE TOKEN"),
    (3, "EVAL HAND 2 k LINE TOKEN WAITER"),
    (2, "EVAL HAND 2 k LINE TOKEN EMPTY MEMBER MEMBER"),
    (3, "ZRANGE LINE 0 -1"),
    (1, "ZREM LINE MEMBER"),
    (1, "EVALSHA TOKEN COUNT KEY"),
    (1, "EVALSHA ffffffffffffffffffffffffffffffffffffffff COUNT KEY"),
    (2, "SCRIPT LOAD RELEASE"),
    (2, "SCRIPT LOAD EXTEND"),
    (2, "SCRIPT EXISTS RELEASE_SHA TOKEN EXTEND_SHA"),
    (1, "SCRIPT FLUSH"),
    (1, "SCRIPT FLUSH MODE"),
    (1, "SCRIPT JUNK"),
    (5, "HELLO 3"),
    (2, "HELLO 2"),
    (1, "HELLO"),
    (1, "HELLO NUMBER"),
    (2, "HELLO 3 AUTH USER PASSWORD"),
    (1, "HELLO 3 AUTH USER PASSWORD SETNAME NAME"),
    (1, "HELLO 2 SETNAME NAME AUTH USER PASSWORD"),
    (1, "HELLO 3 JUNK NAME"),
    (2, "AUTH PASSWORD"),
    (1, "AUTH USER PASSWORD"),
    (1, "AUTH a b c"),
    (2, "SELECT 1"),
    (2, "SELECT 0"),
    (1, "SELECT NUMBER"),
    (3, "PING"),
    (1, "PING TOKEN"),
    (1, "ECHO TOKEN"),
    (1, "TIME"),
    (1, "INFO"),
    (2, "INFO SECTION SECTION"),
    (2, "CLIENT ID"),
    (1, "CLIENT GETNAME"),
    (1, "CLIENT SETNAME NAME"),
    (1, "CLIENT SETINFO LIB-NAME TOKEN"),
    (1, "CLIENT JUNK"),
    (4, "CLIENT TRACKING ON OPTIN NOLOOP"),
    (4, "CLIENT TRACKING ON OPTIN"),
    (2, "CLIENT TRACKING ON"),
    (1, "CLIENT TRACKING ON NOLOOP"),
    (1, "CLIENT TRACKING ON OPTOUT"),
    (2, "CLIENT TRACKING OFF"),
    (2, "CLIENT TRACKING TRACK TRACK TRACK"),
    (12, "CLIENT CACHING YES"),
    (1, "CLIENT CACHING NO"),
    (1, "CLIENT CACHING JUNK"),
    (1, "CLIENT KILL ID OTHER"),
    (1, "CLIENT KILL ID OWN"),
    (1, "CLIENT KILL ID OWN SKIPME no"),
    (1, "CLIENT KILL ID NUMBER"),
    (1, "CLIENT KILL TYPE normal"),
    (1, "CLIENT KILL TYPE pubsub SKIPME NO ID OTHER"),
    (1, "CLIENT KILL TYPE JUNK"),
    (1, "CLIENT KILL JUNK JUNK"),
    (1, "CLIENT KILL 127.0.0.1:1"),
    (1, "SWAPDB 0 1"),
    (1, "SWAPDB NUMBER 1"),
    (1, "SWAPDB 0 NUMBER"),
    (1, "FLUSHALL"),
    (1, "FLUSHDB"),
    (1, "FLUSHALL MODE"),
    (1, "RESET"),
    (1, "QUIT"),
    (1, "COMMAND INFO COMMAND_NAME COMMAND_NAME"),
    (1, "COMMAND JUNK"),
    (2, "JUNK KEY TOKEN"),
    (1, "JUNK LONG KEY LONG TOKEN"),
];

const RAW: &[&str] = &[
    "\r\n",
    "PING\r\n",
    "*0\r\n",
    "*-1\r\n",
    "*1\r\n$4\r\nPING\r\n",
    "SET k \"t\\x41\\n\" nx px 100000\n",
    "SET k 'it\\'s'\r\n",
    "GET \t k\r\n",
    "PING \"x\r\n",
    "PING 'x'y\r\n",
    "*2\r\n$4\r\nPINGxx$1\r\nyzz",
    "*1\r\n$-1\r\n",
    "*1\r\n$x\r\n",
    "*1\r\n+PING\r\n",
    "*1\r\n\r\n",
    "*x\r\n",
    "*+1\r\n",
    "*2147483648\r\n",
    "*11\r\n$1\r\na\r\n$20000\r\n",
    "*1\r\n$536870913\r\n",
    "*1\r\n$0\r\n\r\n",
];

fn request() -> impl Strategy<Value = Request> {
    let total: u32 = COMMANDS.iter().map(|(weight, _)| u32::from(*weight)).sum();
    let words = (0..total, proptest::array::uniform8(any::<u8>()), 0..100_u8);
    let words = words.prop_map(|(mut pick, fills, twist)| {
        let chosen = COMMANDS.iter().find(|(weight, _)| {
            let here = pick < u32::from(*weight);
            pick = pick.saturating_sub(u32::from(*weight));
            here
        });
        twisted(fill(chosen.expect("it is less than their sum").1, &fills), twist)
    });
    let raw = (0..RAW.len()).prop_map(|index| Request::Raw(RAW[index]));
    prop_oneof![60 => words, 1 => raw]
}

/// Sequences that random choice would hardly find. `A` or `B` is the connection on which a command
/// is sent, and the other steps are those of [`parse`].
pub const RARE: &[&str] = &[
    // A replica hides a key that has expired, and notifies no client.
    "A HELLO 3; A CLIENT TRACKING ON; A SET k t PX SOON; A GET k; replica; wait; B GET k; \
     B PTTL k; A DBSIZE; well; B DBSIZE; B EXISTS k; A PING",
    // A write to an expired key deletes it first. This notifies the client, and the write itself
    // does not notify it again.
    "A HELLO 3; A CLIENT TRACKING ON; B SET k t PX SOON; A GET k; wait; B SET k u NX; A GET k; \
     B PEXPIRE k 0; A PING",
    "A HELLO 3; A CLIENT TRACKING ON NOLOOP; A SET k t PX SOON; A GET k; wait; A GET k; \
     B SET k t; A PING",
    "A SET k t PX SOON; wait; A EVAL RELEASE 1 k t; A SET k t PX SOON; wait; B DEL k; \
     A SET k t PX SOON; wait; B PEXPIRE k LATER; B LPUSH k t; B TYPE k",
    // Expired keys leave DBSIZE only when a command reads them.
    "A SET k t PX SOON; A SET other t PXAT 1; wait; B DBSIZE; B PTTL k; B DBSIZE; B TTL other; \
     B DBSIZE",
    "A SET k t PX LATER; A SET k u KEEPTTL; B PTTL k; A SET k u XX KEEPTTL GET; B PTTL k; \
     A SET k u; B PTTL k; A SET other u KEEPTTL; B PTTL other",
    // A registration stays after `CLIENT TRACKING OFF` and after `RESET`.
    "A HELLO 3; A CLIENT TRACKING ON; A GET k; A CLIENT TRACKING OFF; A CLIENT TRACKING ON OPTIN; \
     B SET k t; A PING; A RESET; A HELLO 3; A GET k; A CLIENT TRACKING ON; B SET k t; A PING",
    "A HELLO 3; A CLIENT TRACKING ON; A GET k; A HELLO 2; B SET k t; A HELLO 3; B SET k t; A PING",
    // A failed command or a blank line between `CLIENT CACHING YES` and the read.
    "A HELLO 3; A CLIENT TRACKING ON OPTIN; A CLIENT CACHING YES; A CLIENT ID extra; A GET k; \
     B SET k t; A CLIENT CACHING YES; A blank; A GET k; B SET k t; A CLIENT CACHING YES; A CLIENT; \
     A GET k; B SET k t; A CLIENT CACHING YES; A GET; A GET k; B SET k t; A PING",
    // Every database has its own keys; all databases share the registrations.
    "A HELLO 3; A CLIENT TRACKING ON; A GET k; B SELECT 3; B SET k t; A PING; A GET k; B FLUSHDB; \
     A PING; B SELECT 0; B GET k",
    // Two databases change places; registrations stay, and no client is notified.
    "A HELLO 3; A CLIENT TRACKING ON; A SET k t PX LATER; A GET k; B SELECT 1; B GET k; \
     B SWAPDB 0 1; B GET k; B PTTL k; A GET k; A PING; A DBSIZE; B SET k u; A PING; A SWAPDB 1 1; \
     A SWAPDB 0 16; A SWAPDB -1 0; A SWAPDB 0 4294967297; A SWAPDB x 0; A SWAPDB 0",
    // A transaction runs as a whole, or not at all if one of its commands is refused.
    "A MULTI; A SET k t NX PX LATER; A INCR c; A PEXPIRE c LATER; A EXEC; A PTTL c; A MULTI; \
     A SET k u NX PX LATER; A INCR c; A PEXPIRE c LATER; A EXEC; A GET k; A GET c; A EXEC; \
     A DISCARD; A MULTI; A INCR c; B GET c; A DISCARD; A GET c; A MULTI; A INCR; A INCR c; A EXEC; \
     A MULTI; A NOTHING; A EXEC; A LPUSH l x; A SET n 1x; A MULTI; A INCR l; A INCR n; A INCR c; \
     A EXEC; A SET n 9223372036854775807; A INCR n; A INCR absent; \
     A MULTI; replica; A INCR c; A EXEC; well; A GET c; A MULTI; \
     A INCR c; A again; A EXEC; A GET c; A MULTI; A RESET; A GET c",
    // The script of the node marker keeps the time of a marker, replaces the marker, or leaves it.
    "A SET k MARKER; A EVAL MARK 1 k OTHER_PREFIX keep EMPTY; A SET k MARKER_VOUCHED; \
     A EVAL MARK 1 k OTHER_PREFIX tail EMPTY; A EVAL MARK 1 k OTHER_PREFIX EMPTY EMPTY; \
     A EVAL MARK 1 k OTHER_PREFIX 18 EMPTY; A EVAL MARK 1 k PREFIX 17 EMPTY 99; \
     A EVAL MARK 1 k PREFIX 99 EMPTY 100; A EVAL MARK 1 k OTHER_PREFIX 98 EMPTY 100; A GET k; \
     A SET k MARKER_LATER; A EVAL MARK 1 k OTHER_PREFIX new EMPTY; \
     A EVAL MARK 1 k OTHER_PREFIX EMPTY EMPTY; A SET k x; A EVAL MARK 1 k PREFIX new EMPTY; \
     A DEL k; A EVAL MARK 1 k PREFIX 17 EMPTY; A EVAL MARK 1 k PREFIX EMPTY EMPTY 100; A GET k; \
     A LPUSH l x; A EVAL MARK 1 l PREFIX new EMPTY; A EVAL MARK 1 l; full; \
     A EVAL MARK 1 k OTHER_PREFIX keep EMPTY; A GET k",
    // A script that reads one of its keys registers all of its keys.
    "A HELLO 3; A CLIENT TRACKING ON; A EVAL EXTEND 2 k other t LATER; B SET other t; B SET k t; \
     A EVAL EXTEND 1 k t LATER; A EVAL RELEASE 1 k u; B EVAL RELEASE 1 k t; A PING",
    // Scripts on a replica, and on one that has lost its master, for a key with the caller's token
    // and for one with another.
    "A SET k t PX LATER; A SET other u; replica; A EVAL RELEASE 1 k t; A EVAL RELEASE 1 other t; \
     A EVAL EXTEND 1 k t LATER; A EVAL EXTEND 1 nokey t LATER; orphan; A EVAL RELEASE 1 k t; \
     A EVAL RELEASE 2 k; A EVALSHA RELEASE_SHA 1 k t; A SCRIPT FLUSH; A GET k; A SET k t; well",
    "A SET k t PX LATER; full; A EVAL EXTEND 1 k t LATER; A PTTL k; A SET k t; \
     A EVAL RELEASE 1 k t",
    // An extend by a shorter ttl changes nothing, so it notifies no client that read the key.
    "A HELLO 3; A CLIENT TRACKING ON; B SET k t PX LATER; A GET k; B EVAL EXTEND 1 k t 5; \
     A PTTL k; full; B EVAL EXTEND 1 k t 5; A PTTL k; well; B SET c 7; A PING; \
     B EVAL RAISED 2 k c t 5 LATER 1000 1 3; A PING; replica; B EVAL EXTEND 1 k t 5; well; lonely; \
     B EVAL EXTEND 1 k t 5; unsaved; B EVAL EXTEND 1 k t 5; A PTTL k; well; \
     B EVAL EXTEND 1 k t LATER; A PTTL k",
    // An adopt does not shorten the ttl, and notifies a client that read the key.
    "A HELLO 3; A CLIENT TRACKING ON OPTIN NOLOOP; B SET k t PX LATER; A CLIENT CACHING YES; \
     A PTTL k; B EVAL ADOPT 1 k t u 5; B PTTL k; B GET k; A CLIENT CACHING YES; A PTTL k; \
     A EVAL ADOPT 1 k t x LATER; A EVAL ADOPT 1 k t u LATER; A PTTL k; B EVAL EXTEND 1 k u LATER; \
     A PING; B EVAL ADOPT 1 other t u LATER; B SET other t; B EVAL ADOPT 1 other t u LATER; \
     B PTTL other; B EVAL ADOPT 1 other t u nan; B EVAL ADOPT 1 other t u x; \
     B EVAL ADOPT 1 other t; \
     B SET other t; B EVAL ADOPT 1 other t u -inf; B EVAL ADOPT 1 other t; B EVAL ADOPT 1 other; \
     B LPUSH l t; B EVAL ADOPT 1 l t u LATER; full; B EVAL ADOPT 1 k u t LATER; unsaved; \
     B EVAL ADOPT 1 k u t LATER; B EVAL ADOPT 1 k x t LATER; well; B GET k",
    // `SEEN` deletes the key only if its value begins as the value that an inspection saw.
    "A HELLO 3; A CLIENT TRACKING ON; B SET k t; A GET k; B EVAL SEEN 1 k u 159; A PING; \
     B EVAL SEEN 1 k t 159; A PING; B GET k; B EVAL SEEN 1 k t 159; B SET k abc; \
     B EVAL SEEN 1 k ab 1; B GET k; B LPUSH l t; B EVAL SEEN 1 l t 159; B SET k t; full; \
     B EVAL SEEN 1 k t 159; replica; B EVAL SEEN 1 k t 159; well; B GET k",
    // Waiters join the line of a key. Each release hands the key over to the first waiter, or to
    // the one that it names, and skips a waiter without a connection.
    "A SET k h PX LATER; A EVAL JOIN 2 k line t MEMBER_T LATER LATER EMPTY; \
     A EVAL JOIN 2 k line u MEMBER_U LATER LATER 1; \
     A EVAL JOIN 2 k line t MEMBER_T LATER LATER EMPTY; \
     A EVAL JOIN 2 k line d MEMBER_DEAD LATER LATER 1; A ZRANGE line 0 -1; A PTTL line; \
     A EVAL HAND 2 k line x; A EVAL HAND 2 k line h; A GET k; A PTTL k; A ZRANGE line 0 -1; \
     A EVAL JOIN 2 k line t MEMBER_T LATER LATER EMPTY; A EVAL HAND 2 k line t d; \
     A GET k; A ZRANGE line 0 -1; A EVAL HAND 2 k line u EMPTY MEMBER_U; A EXISTS k line",
    "A SET k h PX LATER; A EVAL JOIN 2 k line t MEMBER_T LATER LATER 1; \
     A EVAL JOIN 2 k line u MEMBER_U LATER LATER EMPTY; A EVAL HAND 2 k line h u; A GET k; \
     A EVAL HAND 2 k line u t MEMBER_U; A GET k; A PTTL k; A EVAL HAND 2 k line t u; \
     A EXISTS k line; A EVAL JOIN 2 k line t MEMBER_T LATER LATER 1; A GET k; \
     A EVAL JOIN 2 k line d MEMBER_DEAD LATER LATER EMPTY; A EVAL HAND 2 k line t; \
     A EXISTS k line; A EVAL JOIN 2 k line d JUNK LATER LATER 1; A SET k h; \
     A EVAL JOIN 2 k line d JUNK LATER LATER EMPTY; \
     A EVAL JOIN 2 k line t MEMBER_T LATER LATER 1; A DEL k; \
     A EVAL JOIN 2 k line u MEMBER_U LATER LATER EMPTY; A GET k; A ZRANGE line 0 -1",
    // A join with a new mark replaces the member with the earlier mark.
    "A SET k h PX LATER; A EVAL JOIN 2 k line t MEMBER_T LATER LATER 1; \
     A EVAL JOIN 2 k line u MEMBER_U LATER LATER EMPTY; \
     A EVAL JOIN 2 k line t OTHER_MARK LATER LATER 1 MEMBER_T MEMBER_DEAD; A ZRANGE line 0 -1; \
     A EVAL HAND 2 k line h; A GET k; \
     A EVAL JOIN 2 k line t MEMBER_T LATER LATER EMPTY OTHER_MARK; A ZRANGE line 0 -1; \
     A PUBSUB NUMSUB redlatch:nobody; A PUBSUB; A PUBSUB NUMSUB",
    // Members that are malformed, so that no key can be handed over to them.
    "A ZADD line 1 JUNK; A ZADD line 2 ZERO_TTL; A ZADD line 3 LONG_TTL; \
     A EVAL JOIN 2 k line t MEMBER_T LATER LATER 1; A GET k; A EXISTS line; \
     A ZADD line 2 ZERO_TTL; A EVAL HAND 2 k line t z; A EXISTS k line",
    // The key of the line has another type: nobody joins it, and a release deletes the key.
    "A SET k h PX LATER; A SET line x; A EVAL JOIN 2 k line t MEMBER_T LATER LATER EMPTY; \
     A EVAL HAND 2 k line h u; A GET k; A SET k h; A EVAL HAND 2 k line h; \
     A GET k; A SET k h; A EVAL HAND 2 k line h u MEMBER_T; A GET k; A SET k h; \
     A EVAL HAND 2 k line h u MEMBER_T MEMBER_U; A GET k; \
     A EVAL JOIN 2 k line t MEMBER_T LATER LATER 1; \
     A EVAL HAND 2 k line t EMPTY MEMBER_T; A GET line; A EXISTS k",
    "A SET k h PX LATER; A EVAL JOIN 2 k line t MEMBER_T LATER LATER EMPTY; full; \
     A EVAL JOIN 2 k line u MEMBER_U LATER LATER 1; A EVAL HAND 2 k line h; A GET k; \
     A EVAL HAND 2 k line t; A EVAL JOIN 2 k line t MEMBER_T LATER LATER EMPTY; A GET k; well; \
     A SET k h; A EVAL JOIN 2 k line t MEMBER_T LATER LATER 1; replica; \
     A EVAL JOIN 2 k line t MEMBER_T LATER LATER EMPTY; A EVAL HAND 2 k line h; well; unsaved; \
     A EVAL HAND 2 k line h; A GET k; well; A EVAL HAND 2 k line h; A GET k",
    "A SET k t; lonely; A EVAL EXTEND 1 k t LATER; A EVAL RELEASE 1 k u; A EVAL RELEASE 1 k t",
    "A SET k t; unsaved; A PING; A EVAL EXTEND 1 k t LATER; A EVAL RELEASE 1 k u; A DEL k; \
     A GET k",
    "A CLIENT SETNAME me; busy; A PING; A SET k t; A HELLO 3; A AUTH x; A CLIENT ID; B RESET; \
     B QUIT",
    // A client that connected while a password was set has not authenticated, and still has not
    // after the password is removed.
    "locked; A again; A HELLO 3; A GET k; unlocked; A GET k; A HELLO 3; A AUTH x; \
     A AUTH default x; A HELLO 3; locked; A GET k; B GET k; A RESET; A GET k; A AUTH secret; \
     A GET k; B RESET; B GET k",
];

/// The steps of a sequence in the form of [`RARE`].
pub fn parse(sequence: &str) -> Vec<Step> {
    let step = |text: &str| match text.split_once(' ') {
        Some(("A", "blank")) => {
            Step::Send { on: 0, requests: vec![Request::Raw("\r\n")], piece: 7 }
        }
        Some(("A", "again")) => Step::Reconnect { on: 0 },
        Some(("A", request)) => Step::Send { on: 0, requests: vec![line(request)], piece: 7 },
        Some(("B", request)) => Step::Send { on: 1, requests: vec![line(request)], piece: 7 },
        _ => match text {
            "wait" => Step::Wait,
            "locked" => Step::Password(true),
            "unlocked" => Step::Password(false),
            "well" => Step::Trouble(None),
            "busy" => Step::Trouble(Some(Trouble::Busy)),
            "unsaved" => Step::Trouble(Some(Trouble::Misconf)),
            "lonely" => Step::Trouble(Some(Trouble::NoReplicas)),
            "full" => Step::Trouble(Some(Trouble::OutOfMemory)),
            "replica" => Step::Trouble(Some(Trouble::Replica)),
            "orphan" => Step::Trouble(Some(Trouble::MasterDown)),
            other => panic!("no step: {other}"),
        },
    };
    sequence.split("; ").map(step).collect()
}

/// A request whose blanks, if it has any, get their first fillings.
fn line(text: &str) -> Request {
    Request::Words(fill(text, &[0; 8]))
}

/// Fills the blanks of a command: each number picks one of the fillings of a word.
fn fill(template: &str, fills: &[u8; 8]) -> Vec<Word> {
    let words = template.split(' ').zip(fills.iter().cycle());
    words.map(|(word, fill)| blank(word, usize::from(*fill))).collect()
}

/// For some values of `twist`, drops the last word, adds one, or makes the first two lower-case.
fn twisted(mut words: Vec<Word>, twist: u8) -> Request {
    match twist {
        80..85 => drop(words.pop()),
        85..90 => words.push(Word::Bytes(b"extra".to_vec())),
        90..95 => {
            for word in words.iter_mut().take(2) {
                match word {
                    // The text of a script must not change, so long words stay as they are.
                    Word::Bytes(bytes) if bytes.len() < 50 => bytes.make_ascii_lowercase(),
                    _ => {}
                }
            }
        }
        _ => {}
    }
    Request::Words(words)
}

/// The filling with this number for a word in capitals. Any other word stays as it is.
fn blank(word: &str, fill: usize) -> Word {
    let one_of = |words: &[&str]| Word::Bytes(words[fill % words.len()].as_bytes().to_vec());
    let sha1 = |script: Script| match fill % 4 {
        0 => Word::Bytes(script.sha1.to_uppercase().into_bytes()),
        _ => Word::Bytes(script.sha1.as_bytes().to_vec()),
    };
    match word {
        "KEY" => one_of(&["k", "k", "k", "a\r\nb\0c", "", "other"]),
        "TOKEN" => one_of(&["t", "t", "t", "u", "\r\n$5\r\n\0", ""]),
        "LINE" => one_of(&["line", "line", "line", "other"]),
        "MEMBER" => one_of(&[
            MEMBER_T,
            MEMBER_T,
            MEMBER_U,
            MEMBER_U,
            MEMBER_DEAD,
            "",
            "t",
            "1 1 -  ",
            "0 1 - m z",
            "1 - m z",
        ]),
        "AGAIN" => one_of(&["1", "1", "", "x"]),
        "WAITER" => one_of(&["t", "u", "d", "", "x", "m"]),
        "OTHER_MARK" => one_of(&["100000 90000 - n t"]),
        "MEMBER_T" => one_of(&[MEMBER_T]),
        "MEMBER_U" => one_of(&[MEMBER_U]),
        "MEMBER_DEAD" => one_of(&[MEMBER_DEAD]),
        "ZERO_TTL" => one_of(&["0 1 - m z", "1 0 - m z"]),
        "LONG_TTL" => one_of(&["1234567890123456 1 - m z", "1 1234567890123456 - m z"]),
        "EMPTY" => one_of(&[""]),
        "LATER" => Word::Later,
        "SOON" => Word::Soon,
        "OWN" => Word::Own,
        "OTHER" => Word::Other,
        "OPTION" => one_of(&["NX", "XX", "GET", "KEEPTTL", "nx", "get", "PX", "FOO"]),
        "UNIT" => one_of(&["PX", "EX", "PXAT", "EXAT"]),
        "NUMBER" => one_of(NUMBERS),
        "INDEX" => one_of(&["0", "1", "2", "55", "-1", "-2", "-9", "x", "9223372036854775807"]),
        "COUNT" => one_of(&["0", "1", "2", "3", "4", "-1", "x", "9223372036854775807"]),
        "FLAG" => one_of(&["NX", "XX", "GT", "LT", "gt", "no"]),
        "TRACK" => one_of(&["ON", "OFF", "OPTIN", "OPTOUT", "NOLOOP", "what"]),
        "MODE" => one_of(&["SYNC", "async", "now"]),
        "USER" => one_of(&["default", "default", "nobody"]),
        "PASSWORD" => one_of(&["secret", "secret", "wrong"]),
        "NAME" => one_of(&["me", "", "a b", "\u{7f}"]),
        "JUNK" => one_of(&["NOPE", "no\r\npe", "n\0pe", "", "client|id", "'", "\u{e9}"]),
        "LONG" => Word::Bytes(vec![b'x'; [20, 127, 128, 129, 300][fill % 5]]),
        "SECTION" => one_of(&["server", "memory", "Persistence", "replication", "cluster", "nope"]),
        "COMMAND_NAME" => one_of(&["get", "SET", "evalsha", "client|id", "nope", "delifeq"]),
        "RELEASE" => Word::Bytes(RELEASE.source.into()),
        "EXTEND" => Word::Bytes(EXTEND.source.into()),
        "ADOPT" => Word::Bytes(ADOPT.into()),
        "SEEN" => Word::Bytes(DELETE_SEEN.into()),
        "JOIN" => Word::Bytes(JOIN.source.into()),
        "HAND" => Word::Bytes(HAND_OVER.source.into()),
        "COUNTED" => Word::Bytes(ACQUIRE.source.into()),
        "RAISED" => Word::Bytes(EXTEND_SET.source.into()),
        "DROP" => Word::Bytes(RELEASE_SET.source.into()),
        "MARK" => Word::Bytes(MARK.into()),
        "PREFIX" => marker(b'a', ""),
        "OTHER_PREFIX" => marker(b'c', ""),
        "MARKER" => marker(b'a', "17"),
        "MARKER_VOUCHED" => marker(b'a', "17 vouched"),
        "MARKER_LATER" => marker(b'a', "17 else"),
        "RELEASE_SHA" => sha1(RELEASE),
        "EXTEND_SHA" => sha1(EXTEND),
        plain => Word::Bytes(plain.as_bytes().to_vec()),
    }
}

/// A node marker, or the beginning of one.
fn marker(run_id: u8, end: &str) -> Word {
    let (run_id, replid) = (vec![run_id; 40], [b'b'; 40]);
    Word::Bytes([&b"1 "[..], &run_id, b" ", &replid, b" ", end.as_bytes()].concat())
}

/// Texts that are no integer, integers that are too large, and times that are over at once. None is
/// a time that could end in the middle of a test.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "x",
    "",
    "05",
    "+5",
    " 5",
    "1.5",
    "-0",
    "0x10",
    "1e9",
    "nan",
    "-inf",
    "inf",
    "4",
    "9223372036854775807",
    "9223372036854775",
    "-9223372036854775808",
    "99999999999999999999",
];
