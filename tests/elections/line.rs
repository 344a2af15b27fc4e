//! Many candidates that wait: whom a change of the leader wakes.

use std::collections::BTreeSet;

use super::*;

/// A minute, so that no candidate asks for the expiry of the key.
const LONG: Duration = secs(60);
const CANDIDATES: usize = 12;
const MASTERS: usize = 3;

/// Candidates that look at the masters in the same moments, a second apart.
struct Line {
    net: Net<Client>,
    campaigns: Vec<CampaignId>,
    leader: Option<usize>,
    /// What the masters held at the key.
    values: BTreeSet<Vec<u8>>,
}

impl Line {
    fn new() -> Line {
        let mut net = net(MASTERS, 1);
        for _ in 0..CANDIDATES {
            let mut settings = settings(MASTERS);
            settings.max_ttl = LONG;
            add_client(&mut net, settings);
        }
        net.pass(millis(50));
        let name = |client| Candidate::named(format!("web-{client}"));
        let campaigns = (0..CANDIDATES).map(|it| campaign(&mut net, it, name(it))).collect();
        Line { net, campaigns, leader: None, values: BTreeSet::new() }
    }

    fn pass(&mut self, by: Duration) {
        let end = self.net.now().saturating_add(by);
        while self.net.now() < end {
            let until = self.net.now().saturating_add(millis(1)).min(end);
            while let Some(client) = self.net.run(until) {
                for (_, standing) in turn(&mut self.net, client) {
                    if let Standing::Leading(_) = standing {
                        assert_eq!(self.leader.replace(client), None, "one leads already");
                    }
                }
            }
            let now = self.net.now();
            let values = (0..MASTERS).filter_map(|it| self.net.master(it).get(now, 0, KEY));
            self.values.extend(values.map(<[u8]>::to_vec));
        }
    }

    /// How many commands each client has sent.
    fn commands(&self) -> Vec<usize> {
        (0..CANDIDATES).map(|client| self.net.get_client(client).commands).collect()
    }
}

/// Others poll each master once, because they hear that the key was written, and ask to hear it
/// again.
#[test]
fn change_of_the_leader_gives_the_key_to_one_of_the_line_and_to_no_other() {
    let mut line = Line::new();
    // Not in a moment in which all look who leads.
    line.pass(secs(10) + millis(300));
    for _ in 0..5 {
        let resigned = line.leader.take().expect("a candidate leads");
        let now = line.net.now();
        let (before, campaign) = (line.commands(), line.campaigns[resigned]);
        line.values.clear();
        let core = &mut line.net.client_mut(resigned).core;
        core.resign(campaign, LONG, 0, now).expect("it leads");
        core.end_term(campaign, now);
        while line.leader.is_none() {
            line.pass(millis(1));
        }
        let next = line.leader.expect("it was just seen");
        let took = line.net.now().saturating_since(now);
        assert!(took < millis(50), "it took {took:?}");
        assert!(line.values.len() <= 2, "others had the key on a master: {:?}", line.values);
        let after = line.commands();
        for other in (0..CANDIDATES).filter(|&it| it != resigned && it != next) {
            let commands = after[other] - before[other];
            assert!(commands < 2 * MASTERS, "candidate {other} sent {commands} commands");
        }
        line.pass(secs(4) - took);
    }
}
