//! If a node's name has several addresses, finds out which server answers at each of them.
//!
//! A client connects to one of the addresses, and counts that server's vote for the node. If the
//! servers differ, two clients may count the votes of different servers for the same node.

use std::net::SocketAddr;

use redlatch::Address;
use redlatch::proto::NodeSettings;

use super::examination::{Parameters, ask_run_id};
use crate::connection::{Connection, Trouble};

/// At most this many addresses of a name are asked, because each may cost a connect timeout.
const MOST: usize = 8;

/// One address of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub address: SocketAddr,
    /// The `run_id` of the server there; `None` if the server does not report it.
    pub run_id: Result<Option<String>, Trouble>,
}

/// Asks at each of these addresses which server answers.
pub fn ask_each(
    found: &[SocketAddr],
    address: &Address,
    node: &NodeSettings,
    parameters: &Parameters,
) -> Vec<Place> {
    let ask = |&place: &SocketAddr| {
        let tls = parameters.tls.as_ref();
        let connection = Connection::open_at(place, address, tls, parameters.patience);
        Place { address: place, run_id: connection.and_then(|it| ask_run_id(it, node)) }
    };
    found.iter().take(MOST).map(ask).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use redlatch::testing::tcp::Masters;
    use redlatch::{LockToken, clock};

    use super::super::trial::Keys;
    use super::*;
    use crate::connection::Patience;

    #[test]
    fn each_address_of_a_name_is_asked_which_server_is_there() {
        let masters = Masters::start(2).expect("loopback has ports");
        let (one, other) = (masters[0].address(), masters[1].address());
        let closed = SocketAddr::from(([127, 0, 0, 1], 1));
        let (address, node) = Address::parse("redis://name.example").expect("it is one");
        let mut rng = StdRng::seed_from_u64(7);
        let [token, other_token] = [(); 2].map(|()| LockToken::random(&mut rng));
        let keys = Keys { key: "key".into(), token, other: other_token };
        let each = Duration::from_secs(5);
        let patience = Patience { each, until: clock::now().saturating_add(2 * each) };
        let parameters = Parameters { tls: None, patience, keys, marker: None, waits: false };
        let places = ask_each(&[one, other, one, closed], &address, &node, &parameters);
        let run_ids: Vec<_> = places.iter().map(|place| place.run_id.clone()).collect();
        assert!(run_ids[..2].iter().all(|it| matches!(it, Ok(Some(_)))), "{places:?}");
        assert_ne!(run_ids[0], run_ids[1]);
        assert_eq!(run_ids[0], run_ids[2]);
        assert!(run_ids[3].is_err(), "{places:?}");
        assert_eq!(places[3].address, closed);
    }
}
