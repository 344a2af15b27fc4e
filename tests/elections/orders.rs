//! Single orders of events that give a candidate too much or too little: what others got wrong, and
//! what chance would seldom reach.

use redlatch::testing::master::Trouble;
use redlatch::{Error, Leadership, Lock};

use super::*;

const MASTERS: usize = 3;

/// Candidates that campaign, and what was reported to them.
struct Play {
    net: Net<Client>,
    /// The campaign of each client.
    campaigns: Vec<CampaignId>,
    /// Clients whose callers take no standings.
    late: Vec<bool>,
    heard: Vec<Vec<Standing>>,
}

impl Play {
    /// The first of these candidates leads: the others begin after it.
    fn new(candidates: usize) -> Play {
        let mut net = net(MASTERS, 1);
        for _ in 0..candidates {
            add_client(&mut net, settings(MASTERS));
        }
        net.pass(millis(50));
        let late = vec![false; candidates];
        let mut play = Play { net, campaigns: Vec::new(), late, heard: Vec::new() };
        for client in 0..candidates {
            play.heard.push(Vec::new());
            let candidate = Candidate::named(format!("web-{client}")).address("h:1");
            let begun = campaign(&mut play.net, client, candidate);
            play.campaigns.push(begun);
            play.pass(millis(50));
        }
        play
    }

    fn core(&mut self, client: usize) -> &mut Coordinator {
        &mut self.net.client_mut(client).core
    }

    fn pass(&mut self, by: Duration) {
        let end = self.net.now().saturating_add(by);
        while let Some(client) = self.net.run(end) {
            match self.late.get(client) {
                Some(false) => self.take(client),
                _ => drive(&mut self.net, client),
            }
        }
    }

    fn take(&mut self, client: usize) {
        let standings = turn(&mut self.net, client).into_iter().map(|(_, standing)| standing);
        self.heard[client].extend(standings);
    }

    /// What a candidate heard since the last call, in words.
    fn heard(&mut self, client: usize) -> Vec<String> {
        std::mem::take(&mut self.heard[client]).iter().map(in_words).collect()
    }

    /// Lets time pass until this candidate leads.
    #[track_caller]
    fn lead(&mut self, client: usize) -> Lock {
        for _ in 0..40_000 {
            let is_it = |it: &Standing| matches!(it, Standing::Leading(_));
            if let Some(place) = self.heard[client].iter().position(is_it) {
                let Standing::Leading(lock) = self.heard[client].swap_remove(place) else {
                    unreachable!()
                };
                self.heard[client].clear();
                return lock;
            }
            self.pass(millis(1));
        }
        panic!("candidate {client} heard {:?}", self.heard(client));
    }

    fn resign(&mut self, client: usize, pause: Duration) -> Result<(), Error> {
        let (campaign, now) = (self.campaigns[client], self.net.now());
        self.core(client).resign(campaign, pause, 0, now).map(drop)
    }

    fn end_term(&mut self, client: usize) {
        let (campaign, now) = (self.campaigns[client], self.net.now());
        self.core(client).end_term(campaign, now);
    }

    /// Puts a key of somebody else in the place of the leader's lock.
    fn put_another_key(&mut self, length: Duration) {
        let length = length.as_millis().to_string();
        self.on_all(&[b"SET", KEY, b"other", b"PX", length.as_bytes()]);
    }

    fn on_all(&mut self, words: &[&[u8]]) {
        (0..MASTERS).for_each(|master| drop(self.net.command(master, words)));
    }

    /// What a new observer sees.
    fn look(&mut self) -> Leadership {
        let client = add_client(&mut self.net, settings(MASTERS));
        self.pass(millis(20));
        let now = self.net.now();
        let looks = self.core(client).observe(KEY, 0, now).expect("the name is good");
        let end = now.saturating_add(millis(100));
        let mut seen = Leadership::Unknown;
        while self.net.run(end).is_some() {
            for (campaign, standing) in turn(&mut self.net, client) {
                assert_eq!(campaign, looks);
                if let Standing::Observed(it) = standing {
                    seen = it;
                }
            }
        }
        let now = self.net.now();
        self.core(client).withdraw(looks, now);
        seen
    }
}

fn in_words(standing: &Standing) -> String {
    match standing {
        Standing::Leading(_) => "leads".into(),
        Standing::Following(None) => "follows nobody".into(),
        Standing::Following(Some(leader)) => format!("follows {}", leader.name()),
        Standing::AskedToResign(pause) => format!("is asked to resign for {pause:?}"),
        Standing::Failed(_) => "failed".into(),
        Standing::Observed(Leadership::Leader(leader)) => format!("sees {}", leader.name()),
        Standing::Observed(seen) => format!("sees {seen:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn lock_that_is_lost_before_its_term_is_taken_gives_no_term() {
    let mut play = Play::new(1);
    let first = play.lead(0);
    play.end_term(0);
    play.late[0] = true;
    play.pass(millis(50));
    assert!(play.core(0).has_standings(), "it leads again, and its caller does not know");
    play.put_another_key(secs(1));
    play.pass(millis(900));
    play.late[0] = false;
    play.take(0);
    assert_eq!(play.heard(0), ["follows nobody"]);
    let third = play.lead(0);
    assert!(third.fence() > first.fence());
}

/// The caller does not run until the lock is over, and asks for its standings before its driver has
/// done anything else.
#[test]
fn lock_that_ends_before_its_term_is_taken_gives_no_term() {
    let mut play = Play::new(1);
    let _term = play.lead(0);
    play.end_term(0);
    play.late[0] = true;
    play.pass(millis(50));
    play.net.advance(TTL);
    let (campaign, now) = (play.campaigns[0], play.net.now());
    let core = play.core(0);
    let standings: Vec<_> = std::iter::from_fn(|| core.poll_standing(now)).collect();
    let standings: Vec<_> = standings.iter().map(|it| in_words(&it.standing)).collect();
    assert_eq!(standings, ["follows nobody"]);
    assert_eq!(core.term(campaign), None);
    play.late[0] = false;
    let _term = play.lead(0);
}

/// Whether the caller resigns before its driver reports the loss, or between this and the standing.
#[test]
fn loss_and_resign_in_one_turn_end_one_term_and_keep_the_pause() {
    for loss_is_reported in [false, true] {
        let mut play = Play::new(1);
        let _term = play.lead(0);
        play.put_another_key(millis(500));
        // The client learns of it, and the driver does not report it.
        while play.net.run(play.net.now().saturating_add(millis(300))).is_some() {}
        assert!(play.core(0).has_lock_updates());
        if loss_is_reported {
            while play.core(0).poll_lock_update().is_some() {}
        }
        drop(play.resign(0, secs(3)));
        play.pass(millis(10));
        assert_eq!(play.heard(0), ["follows nobody"], "{loss_is_reported}");
        play.end_term(0);
        play.pass(millis(2900));
        assert_eq!(play.heard(0), [""; 0], "{loss_is_reported}");
        let _term = play.lead(0);
    }
}

#[test]
fn term_that_is_ended_twice_costs_no_later_term() {
    let mut play = Play::new(1);
    let first = play.lead(0);
    play.end_term(0);
    play.end_term(0);
    play.late[0] = true;
    play.pass(millis(50));
    let key = |play: &Play| play.net.master(0).get(play.net.now(), 0, KEY).map(<[u8]>::to_vec);
    let held = key(&play);
    assert!(held.is_some(), "by now it leads again");
    play.end_term(0);
    play.pass(millis(50));
    assert_eq!(key(&play), held);
    play.late[0] = false;
    play.take(0);
    assert_eq!(in_words(&play.heard[0][0]), "follows nobody");
    let second = play.lead(0);
    let campaign = play.campaigns[0];
    assert_eq!(play.core(0).term(campaign), Some(&second));
    assert!(second.fence() > first.fence());
}

#[test]
fn candidate_that_resigns_in_line_leaves_it_for_its_pause() {
    let mut play = Play::new(2);
    let _term = play.lead(0);
    assert_eq!(play.look().leader().and_then(|it| it.next()), Some(&"web-1@h:1".into_candidate()));
    assert!(matches!(play.resign(1, secs(5)), Err(Error::Lost { .. })));
    play.pass(millis(50));
    assert_eq!(play.look().leader().and_then(|it| it.next()), None);
    play.resign(0, secs(60)).expect("it leads");
    play.end_term(0);
    play.pass(millis(4500));
    assert_eq!(play.look(), Leadership::Nobody);
    assert_eq!(play.heard(1), ["follows web-0", "follows nobody"]);
    let _term = play.lead(1);
}

trait IntoCandidate {
    fn into_candidate(self) -> Candidate;
}

impl IntoCandidate for &str {
    fn into_candidate(self) -> Candidate {
        let (name, address) = self.split_once('@').expect("both are given");
        Candidate::named(name).address(address)
    }
}

#[test]
fn request_to_resign_concerns_the_term_that_was_seen_and_no_later_one() {
    let mut play = Play::new(1);
    let _term = play.lead(0);
    let Leadership::Leader(seen) = play.look() else { panic!("nobody leads") };
    play.end_term(0);
    let _term = play.lead(0);
    let now = play.net.now();
    play.core(0).ask_to_resign(KEY, &seen, secs(3), 0, now).expect("there is room");
    play.pass(millis(1500));
    assert_eq!(play.heard(0), [""; 0]);
    let Leadership::Leader(seen) = play.look() else { panic!("nobody leads") };
    let now = play.net.now();
    play.core(0).ask_to_resign(KEY, &seen, secs(3), 0, now).expect("there is room");
    play.pass(millis(1500));
    assert_eq!(play.heard(0), ["is asked to resign for 3s"]);
    play.end_term(0);
    play.pass(millis(2900));
    assert_eq!(play.heard(0), ["follows nobody"], "it does as it was asked");
    let _term = play.lead(0);
}

#[test]
fn note_of_an_earlier_leader_says_nothing_of_the_next_one() {
    let mut play = Play::new(2);
    let first = play.lead(0);
    let (campaign, now) = (play.campaigns[0], play.net.now());
    play.core(0).proclaim(campaign, "h:2", now).expect("the address is good");
    play.pass(millis(50));
    let term = |seen: &Leadership| {
        let leader = seen.leader().unwrap_or_else(|| panic!("{seen:?}"));
        (leader.name().to_owned(), leader.address().map(str::to_owned), leader.term())
    };
    let of = |name: &str, address: &str, term| (name.to_owned(), Some(address.to_owned()), term);
    assert_eq!(term(&play.look()), of("web-0", "h:2", first.fence()));
    let note = b"redlatch:leader:{scheduler}";
    let earlier = play.net.master(0).get(play.net.now(), 0, note).expect("it is there").to_vec();
    play.resign(0, secs(60)).expect("it leads");
    play.end_term(0);
    let second = play.lead(1);
    play.pass(millis(50));
    assert_eq!(term(&play.look()), of("web-1", "h:1", second.fence()));
    // It stands still, so that it writes no note.
    play.net.stop(1);
    play.on_all(&[b"SET", note, &earlier, b"PX", b"10000"]);
    assert_eq!(term(&play.look()), of("web-1", "h:1", None));
    play.net.resume(1);
    play.pass(secs(1));
    assert_eq!(term(&play.look()), of("web-1", "h:1", second.fence()));
}

#[test]
fn campaign_reports_that_a_permission_was_taken_away_and_goes_on_afterwards() {
    let mut play = Play::new(2);
    let _term = play.lead(0);
    let refusal = b"-NOPERM this user has no permissions to access one of the keys\r\n".to_vec();
    let commands = ["set", "eval", "evalsha", "multi"].map(str::to_owned).to_vec();
    for master in 0..MASTERS {
        let trouble = Trouble::Answers { commands: commands.clone(), reply: refusal.clone() };
        play.net.master_mut(master).suffer(trouble);
    }
    play.pass(5 * TTL);
    assert_eq!(play.heard(0)[0], "follows nobody", "it lost its term");
    play.end_term(0);
    play.pass(3 * TTL);
    for client in [0, 1] {
        let heard = play.heard(client);
        assert!(heard.iter().any(|it| it == "failed"), "{client} heard {heard:?}");
    }
    (0..MASTERS).for_each(|master| play.net.master_mut(master).serve());
    play.pass(secs(15));
    let heard = [play.heard(0), play.heard(1)].concat();
    let leads = heard.iter().filter(|it| *it == "leads").count();
    assert_eq!(leads, 1, "{heard:?}");
}

#[test]
fn observers_of_one_client_are_told_each_change_and_one_may_go() {
    let mut play = Play::new(2);
    let client = add_client(&mut play.net, settings(MASTERS));
    play.late.push(false);
    play.heard.push(Vec::new());
    play.pass(millis(50));
    let now = play.net.now();
    let core = play.core(client);
    let [one, _other] = [0, 1].map(|data| core.observe(KEY, data, now).expect("a good name"));
    let _term = play.lead(0);
    play.pass(secs(2));
    assert_eq!(play.heard(client).concat(), "sees web-0".repeat(2));
    let now = play.net.now();
    play.core(client).withdraw(one, now);
    play.resign(0, secs(60)).expect("it leads");
    play.end_term(0);
    let _term = play.lead(1);
    play.pass(secs(2));
    assert_eq!(play.heard(client).last().map(|it| &**it), Some("sees web-1"));
    play.resign(1, secs(60)).expect("it leads");
    play.end_term(1);
    play.pass(secs(2));
    assert_eq!(play.heard(client), ["sees Nobody"]);
}

#[test]
fn caller_that_never_ends_its_term_blocks_only_itself() {
    let mut play = Play::new(2);
    let first = play.lead(0);
    play.net.client_mut(0).cut_off.fill(true);
    let second = play.lead(1);
    assert!(second.fence() > first.fence());
    play.net.client_mut(0).cut_off.fill(false);
    play.pass(secs(30));
    assert_eq!(play.heard(0), ["follows nobody", "follows web-1"]);
    assert_eq!(play.look().leader().and_then(|it| it.next()), None, "it does not ask");
    play.end_term(0);
    play.pass(secs(1));
    assert!(play.look().leader().is_some_and(|it| it.next().is_some()), "it asks");
    play.resign(1, secs(60)).expect("it leads");
    play.end_term(1);
    let third = play.lead(0);
    assert!(third.fence() > second.fence());
}
