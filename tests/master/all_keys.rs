//! Sequences of steps with the scripts over all keys of a lock, with and without counters. Random
//! words hardly ever make a valid call of these scripts.

/// Sequences in the form of [`RARE`](super::sequence::RARE). Each is played on empty servers.
pub const ALL_KEYS: &[&str] = &[
    // `COUNTED` acquires keys and counts, `RAISED` extends keys and raises counters. A value that
    // is no counter stays as it is.
    "A SET c 7; A EVAL COUNTED 2 k c t LATER LATER 1000; A GET c; A PTTL c; A PTTL k; A GET k; \
     A EVAL COUNTED 2 k c u LATER LATER 1000; A GET c; A EVAL RAISED 2 k c t 0 LATER 1000 1 12; \
     A GET c; A PTTL k; A EVAL RAISED 2 k c t 0 LATER 1000 1 3; A GET c; \
     A EVAL RAISED 2 k c u 0 LATER 1000 1 30; A EVAL RAISED 2 l c t 0 LATER 1000 1 30; A GET c; \
     A EVAL RAISED 2 k c t LATER LATER 1000 1 13; A GET c; A PTTL k; A PTTL c; \
     A EVAL COUNTED 2 h c t LATER LATER 1000 40; A GET c; \
     A EVAL COUNTED 2 i c t LATER LATER 1 5; A GET c; A SET c 1782579200016780; \
     A EVAL COUNTED 2 j c t LATER LATER 1; A GET c",
    "A SET c x; A EVAL COUNTED 2 k c t LATER LATER 1; A GET k; A SET c -1; \
     A EVAL COUNTED 2 k c t LATER LATER 1; A SET c 1e30; A EVAL COUNTED 2 k c t LATER LATER 1; \
     A SET c nan; A EVAL COUNTED 2 k c t LATER LATER 1; A GET k; A SET k t; A SET c x; \
     A EVAL RAISED 2 k c t LATER LATER 1 1 5; A GET c; A DEL c; A LPUSH c x; \
     A EVAL COUNTED 2 l c t LATER LATER 1; A EVAL RAISED 2 k c t LATER LATER 1 1 5; A GET l",
    // A claim, which is `RAISED` without numbers, extends a key that was handed over, and counts.
    "A SET k t PX LATER; A SET c 7; A EVAL RAISED 2 k c t LATER LATER 1000 1; A GET c; A PTTL c; \
     A EVAL RAISED 2 k c t 0 LATER 1000 1; A GET c; A EVAL RAISED 2 k c u LATER LATER 1000 1; \
     A EVAL RAISED 2 l c t LATER LATER 1000 1; A GET c; A SET l t; A SET d 3; \
     A EVAL RAISED 4 k l c d t LATER LATER 1000 1; A GET c; A GET d; A PTTL l; \
     A EVAL RAISED 4 k l c d t LATER LATER 1000 1 20 2; A GET c; A GET d; A SET c x; \
     A EVAL RAISED 2 k c t LATER LATER 1000 1; full; A SET c 7; \
     A EVAL RAISED 2 k c t LATER LATER 1000 1; well",
    "A SET c 7; A SET k t; full; A EVAL COUNTED 2 l c t LATER LATER 1; A GET l; \
     A EVAL RAISED 2 k c t LATER LATER 1 1 5; A EVAL RAISED 2 k c t LATER LATER 1 1 9; A GET c; \
     well; replica; A EVAL COUNTED 2 l c t LATER LATER 1; \
     A EVAL RAISED 2 k c t LATER LATER 1 1 9; well",
    // The key already holds the token, or has another type.
    "A SET c 7; A SET k t PX LATER; A EVAL COUNTED 2 k c t 5 LATER 1000 1; A GET c; A PTTL k; \
     A EVAL COUNTED 2 k c t LATER LATER 1000 1 9; A GET c; A PTTL k; A LPUSH l x; \
     A EVAL COUNTED 2 l c t LATER LATER 1000 1; A EVAL RAISED 2 l c t LATER LATER 1000 1 9; \
     A EVAL ADOPT 1 l t u LATER; A GET c; A EVAL COUNTED 1 k t LATER; \
     A EVAL COUNTED 1 k u LATER; A EVAL COUNTED 1 l u LATER; A EVAL COUNTED 1 free u LATER; \
     A GET free; A EVAL RAISED 1 k t 5",
    // Several keys, without counters and with them: the script writes all of them, or none.
    "A HELLO 3; A CLIENT TRACKING ON; A SET b u; A SET d t PX LATER; \
     B EVAL COUNTED 2 a b t LATER; A GET a; B EVAL COUNTED 3 d a e t LATER; A GET a; A GET e; \
     A PTTL d; B EVAL COUNTED 2 a b t 5; B EVAL RAISED 2 a b t LATER; \
     B EVAL RAISED 2 a nokey t LATER; B EVAL RAISED 3 d a e t LATER; A PTTL e; \
     B EVAL ADOPT 3 d a e t u LATER; A GET e; B EVAL ADOPT 3 d a nokey u t LATER; A GET d; \
     B EVAL DROP 4 d a nokey b u; B EVAL DROP 2 e d t; A EXISTS a b d e; A LPUSH l x; \
     B EVAL COUNTED 2 a l t LATER; B EVAL RAISED 2 l a t LATER; B EVAL ADOPT 2 l a t u LATER; \
     B EVAL DROP 2 l a t; A GET a",
    "A SET x 7; A SET y 9; A EVAL COUNTED 4 a b x y t LATER LATER 1000 1; A GET x; A GET y; \
     A GET a; A EVAL COUNTED 4 a b x y u LATER LATER 1000 1; \
     A EVAL COUNTED 4 a b x y t LATER LATER 1 1 20 3; A GET x; A GET y; A PTTL x; \
     A EVAL RAISED 4 a b x y t 0 LATER 1000 1 30 4; A GET x; A GET y; A PTTL y; \
     A EVAL RAISED 4 a b x y u LATER LATER 1000 1 40 40; A SET y no; \
     A EVAL RAISED 4 a b x y t LATER LATER 1000 1 40 40; A GET x; A SET b other; \
     A EVAL COUNTED 4 c d x y t LATER LATER 1000 1; \
     A EVAL COUNTED 4 c b x y t LATER LATER 1000 1; A EXISTS c d; full; A SET y 1; \
     A EVAL COUNTED 4 c d x y t LATER LATER 1000 1; A EVAL COUNTED 2 c b t LATER; \
     A EVAL RAISED 2 a b t LATER; A EVAL DROP 2 a b t; well; replica; \
     A EVAL COUNTED 2 c b t LATER; A EVAL COUNTED 2 c d t LATER; A EVAL DROP 2 a b t; well; \
     A GET x",
];
