//! `doctor`, `init` and the list of masters on servers without Lua: Valkey from 9.1 on, where Lua
//! is a module.

use super::*;
use crate::no_lua::{NO_LUA, without_lua};

#[test]
fn doctor_and_init_on_servers_without_lua() {
    let Some(fleet) = without_lua(3) else { return };
    let diagnosis = ask_plainly(&fleet.urls());
    for node in &fleet {
        let expected = [("scripts", "warn", "Could not find scripting engine 'lua'")];
        diagnosis.is(&label(node), &expected);
    }
    let flags = ["--node-timeout", "5s"];
    let guarded = |words: &[&str]| run(&mut tool_at(&fleet.urls(), &flags, words));
    guarded(&["acquire", "-n", "deploy"]).with_code(69);
    guarded(&["init", "--yes"]).with_code(0);
    guarded(&["acquire", "-n", "deploy"]).with_code(0);
    let fenced = guarded(&["acquire", "--fenced", "other"]).with_code(125);
    assert!(fenced.errors.contains(NO_LUA), "{fenced:?}");
    let vouched = ask(&fleet.urls(), &["--node-timeout", "5s"]);
    let (level, words) = vouched.words(Some(&label(&fleet[0])), "marker");
    assert_eq!(level, "ok", "{words}");
    assert!(words.contains("vouched"), "{words}");
}

#[test]
fn list_of_masters_is_written_on_servers_without_lua() {
    let Some(fleet) = without_lua(3) else { return };
    let timing = ["--node-timeout", "5s", "--connect-timeout", "20s", "--max-ttl", "1s"];
    let checked = |words: &[&str]| run(&mut tool_at(&fleet.urls(), &timing, words));
    eventually(LIMIT, "the list is agreed", || {
        checked(&["init", "--yes"]).with_code(0);
        checked(&["acquire", "--check-members", "-t", "500ms", "-w", "5s", "deploy"]).with_code(0);
        let lists = values(&fleet, "redlatch:members");
        lists.iter().all(|list| list.as_deref().is_some_and(|list| list.contains("agreed")))
    });
    let list = checked(&["members"]).with_code(0);
    assert!(fleet.iter().all(|node| list.out.contains(&label(node))), "{list:?}");
    let to = fleet.urls().join(",");
    for action in [&["resume"][..], &["undo"], &["change", "--to", &to]] {
        let done = checked(&[&["members"], action].concat()).with_code(0);
        assert!(done.out.contains("done; quorum 2 of 3"), "{action:?}: {done:?}");
    }
}
