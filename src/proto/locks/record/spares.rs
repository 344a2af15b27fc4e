//! What ended records leave to later ones: with it, a lock allocates nothing in the steady state,
//! also if it has a fencing number or several keys.

use std::time::Duration;

use crate::proto::key_set::KeySet;
use crate::proto::locks::fence::number::Fencing;
use crate::proto::locks::record::records::Record;
use crate::proto::locks::record::trouble::Trouble;
use crate::proto::locks::set::keys::SetOfKeys;
use crate::proto::surplus::{FEW, shrink_list};

/// How many of each kind are kept: as many as a busy client has locks in flight.
const MOST: usize = 4096;
/// A key buffer that is longer, in bytes, is not kept: one long key must not cost memory for ever.
const LONGEST_KEY: usize = 1024;
/// Lists for more keys than this are not kept, for the same reason.
const MOST_KEYS: usize = 8;

/// Memory that no record uses.
#[derive(Debug, Clone, Default)]
#[expect(clippy::vec_box, reason = "a record takes the box itself")]
pub(super) struct Spares {
    keys: Vec<Vec<u8>>,
    troubles: Vec<Box<Trouble>>,
    sets: Vec<Box<SetOfKeys>>,
    fencings: Vec<Box<Fencing>>,
}

impl Spares {
    /// A buffer with these bytes.
    pub(super) fn key(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.keys.pop().unwrap_or_default();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// [`Record::trouble_mut`], with memory from here.
    pub(super) fn trouble_of<'a>(&mut self, record: &'a mut Record) -> &'a mut Trouble {
        record.trouble.get_or_insert_with(|| self.troubles.pop().unwrap_or_default())
    }

    /// What a record with these keys knows of them.
    pub(super) fn set(&mut self, keys: &KeySet) -> Box<SetOfKeys> {
        let mut set = self.sets.pop().unwrap_or_default();
        set.begin(keys);
        set
    }

    /// A [`Fencing`] without votes for a new attempt, in spare memory if there is some.
    pub(super) fn fencing(&mut self, keys: usize, round: u32, max_ttl: Duration) -> Box<Fencing> {
        let mut fencing = self.fencings.pop().unwrap_or_default();
        fencing.begin(keys, round, max_ttl);
        fencing
    }

    /// Takes what a record leaves that has ended.
    pub(super) fn take_from(&mut self, record: Record) {
        if let Some(trouble) = record.trouble {
            self.take_trouble(trouble);
        }
        let mut key = record.key;
        if self.keys.len() < MOST && key.capacity() <= LONGEST_KEY {
            key.clear();
            self.keys.push(key);
        }
    }

    fn take_trouble(&mut self, mut trouble: Box<Trouble>) {
        let set = trouble.set.take().filter(|set| set.len() <= MOST_KEYS);
        self.sets.extend(set.filter(|_| self.sets.len() < MOST));
        let fencing = trouble.fencing.take().filter(|it| it.count_keys() <= MOST_KEYS);
        self.fencings.extend(fencing.filter(|_| self.fencings.len() < MOST));
        if self.troubles.len() < MOST {
            *trouble = Trouble::default();
            self.troubles.push(trouble);
        }
    }

    /// Keeps no more than is enough for `most` records.
    pub(super) fn shrink(&mut self, most: usize) {
        fn shrink<T>(list: &mut Vec<T>, most: usize) {
            list.truncate((2 * most).max(FEW / 16));
            shrink_list(list, most);
        }
        shrink(&mut self.keys, most);
        shrink(&mut self.troubles, most);
        shrink(&mut self.sets, most);
        shrink(&mut self.fencings, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ids::RecordId;
    use crate::proto::lock::LockToken;
    use crate::proto::locks::record::records::Records;
    use crate::proto::locks::round::state::Round;
    use crate::proto::node_set::NodeId;
    use crate::proto::quorum::Ballot;
    use crate::proto::time::{Instant, Ttl};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    const MINUTE: Duration = Duration::from_secs(60);

    impl Spares {
        fn kept(&self) -> [usize; 4] {
            [self.keys.len(), self.troubles.len(), self.sets.len(), self.fencings.len()]
        }
    }

    fn set_of(keys: usize) -> KeySet {
        KeySet::new((0..keys).map(|key| format!("key {key}"))).unwrap()
    }

    /// A fenced record over so many keys.
    fn open(records: &mut Records, keys: usize) -> RecordId {
        let ttl = Ttl::new(Duration::from_secs(1), MINUTE).unwrap();
        let token = LockToken::random(&mut StdRng::from_seed([1; 32]));
        let round = Round::acquire(Ballot::of_majority(3), Instant::default(), ttl);
        let id = records.open_set(&set_of(keys), token, round).unwrap();
        records.begin_fencing(id, MINUTE);
        id
    }

    #[test]
    fn ended_records_leave_what_they_had_up_to_a_number_and_a_size() {
        let mut records = Records::new(10_000);
        let ids: Vec<RecordId> = (0..=MOST).map(|_| open(&mut records, 2)).collect();
        ids.into_iter().for_each(|id| records.close(id));
        assert_eq!(records.spares().kept(), [MOST; 4]);
        records.shrink(500);
        assert_eq!(records.spares().kept(), [1_000; 4], "twice what was in use");
        records.shrink(1);
        assert_eq!(records.spares().kept(), [FEW / 16; 4]);
        let few = FEW / 16;
        for (keys, kept) in [(MOST_KEYS, [few; 4]), (MOST_KEYS + 1, [few, few, few - 1, few - 1])] {
            let id = open(&mut records, keys);
            records.close(id);
            assert_eq!(records.spares().kept(), kept, "{keys} keys");
        }
        for (length, kept) in [(LONGEST_KEY, 1), (LONGEST_KEY + 1, 0)] {
            let mut records = Records::new(10);
            let id = open(&mut records, 1);
            records.get_mut(id).key = Vec::with_capacity(length);
            records.close(id);
            assert_eq!(records.spares().kept()[0], kept, "{length} bytes");
        }
    }

    #[test]
    fn next_record_knows_nothing_of_the_one_whose_memory_it_has() {
        let mut records = Records::new(10);
        let id = open(&mut records, 8);
        let trouble = records.get_mut(id).trouble_mut();
        trouble.absent.insert(NodeId::new(1));
        trouble.plain.insert(NodeId::new(2));
        let set = trouble.set.as_mut().unwrap();
        set.set_named(7);
        set.wait_in(3, 5);
        set.refused_by.push((NodeId::new(0), 1));
        assert!(trouble.fencing.as_mut().unwrap().put(NodeId::new(0), &[9; 8]));
        records.close(id);

        let id = open(&mut records, 2);
        let again = records.get(id);
        assert_eq!((again.absent(), again.plain()), Default::default());
        let set = again.set().unwrap();
        assert_eq!((set.len(), set.named(), set.waits(), set.place_of(1)), (2, None, false, None));
        assert!(set.refused_by.is_empty());
        assert_eq!(again.keys().collect::<Vec<_>>(), [b"key 0", b"key 1"]);
        let fencing = again.fencing().unwrap();
        assert_eq!((fencing.count_keys(), fencing.fences().sum::<u64>()), (2, 0));
    }
}
