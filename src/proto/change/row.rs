//! Which list comes next on the way to the wanted one: a list that differs by one node.
//!
//! The hazard is a step after which no quorum can answer. So a node is added before another one is
//! removed, but a node that does not answer is removed first.

use crate::proto::node_set::MAX_NODES;
use crate::proto::wire::members::{Member, MemberId};

/// The members after the next step from `present` to `wanted`; `None` if these are the same nodes.
/// Nodes are added in the order of `wanted`.
pub fn next_members(
    present: &[Member],
    wanted: &[Member],
    answers: impl Fn(MemberId) -> bool,
) -> Option<Vec<Member>> {
    let is_in = |list: &[Member], id: MemberId| list.iter().any(|member| member.id == id);
    let added = wanted.iter().find(|member| !is_in(present, member.id));
    let leave: Vec<MemberId> =
        present.iter().map(|member| member.id).filter(|&id| !is_in(wanted, id)).collect();
    let without = |id: MemberId| -> Vec<Member> {
        present.iter().filter(|member| member.id != id).cloned().collect()
    };
    let silent = leave.iter().copied().find(|&id| !answers(id)).filter(|_| present.len() > 1);
    if let Some(silent) = silent {
        return Some(without(silent));
    }
    match (added, leave.first()) {
        (Some(added), leaves)
            if leaves.is_none() || present.len() <= wanted.len().min(MAX_NODES - 1) =>
        {
            Some(present.iter().chain([added]).cloned().collect())
        }
        (_, leaves) => leaves.map(|&id| without(id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(digits: &str) -> Vec<Member> {
        let id = |digit: char| {
            let mut run_id = [0; 40];
            run_id.fill(digit as u8);
            MemberId::of_run_id(&run_id)
        };
        digits.chars().map(|digit| Member { id: id(digit), address: "a:1".into() }).collect()
    }

    fn row(from: &str, to: &str, silent: &str) -> String {
        let (mut present, wanted, silent) = (members(from), members(to), members(silent));
        let mut lists = Vec::new();
        while let Some(mut next) =
            next_members(&present, &wanted, |id| silent.iter().all(|it| it.id != id))
        {
            next.sort_unstable();
            let digit = |member: &Member| member.id.to_string().chars().next();
            lists.push(next.iter().filter_map(digit).collect::<String>());
            present = next;
        }
        lists.join(" ")
    }

    #[test]
    fn nodes_are_added_before_others_are_removed() {
        assert_eq!(row("a", "abc", ""), "ab abc");
        assert_eq!(row("abc", "abd", ""), "abcd abd");
        assert_eq!(row("abc", "def", ""), "abcd bcd bcde cde cdef def");
        assert_eq!(row("abcde", "abf", ""), "abde abe abef abf");
        assert_eq!(row("a", "cb", ""), "ac abc bc");
        assert_eq!(row("abc", "cab", ""), "");
    }

    #[test]
    fn node_that_does_not_answer_is_removed_first() {
        assert_eq!(row("abc", "abd", "c"), "ab abd");
        assert_eq!(row("abc", "ade", "c"), "ab abd abde ade");
        assert_eq!(row("a", "b", "a"), "ab b");
    }

    #[test]
    fn largest_list_shrinks_before_a_node_is_added() {
        let all: Vec<Member> = (0..=MAX_NODES)
            .map(|number| {
                let run_id: [u8; 40] = format!("{number:040x}").into_bytes().try_into().unwrap();
                let mut id = [b'0'; 40];
                id[..16].copy_from_slice(&run_id[24..]);
                Member { id: MemberId::of_run_id(&id), address: "a:1".into() }
            })
            .collect();
        let next = next_members(&all[..MAX_NODES], &all[1..], |_| true).unwrap();
        assert_eq!(next.len(), MAX_NODES - 1);
        assert_eq!(next_members(&next, &all[1..], |_| true).unwrap().len(), MAX_NODES);
    }
}
