//! The decoder of RESP2 and RESP3 replies.
