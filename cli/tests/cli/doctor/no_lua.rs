//! Every verb of the tool on servers without Lua: its result, or what it says. They run only on
//! Valkey from 9.1 on, where Lua is a module.

use super::*;

/// Servers without Lua; `None` if Lua is no module of this server.
fn without_lua(count: usize) -> Option<Fleet> {
    let server = support::Server::get();
    if !server.valkey || server.version < (9, 1) {
        println!("not run: {} {:?} has no module lua", server.binary, server.version);
        return None;
    }
    let fleet = Fleet::with(count, &["--enable-module-command", "yes"]);
    for node in &fleet {
        assert!(node.command(&["MODULE", "UNLOAD", "lua"]).is_ok());
    }
    Some(fleet)
}

const NO_LUA: &str = "runs no Lua scripts: only plain locks on one key work there";

#[test]
fn every_verb_works_on_servers_without_lua_or_says_what_it_needs() {
    let Some(fleet) = without_lua(3) else { return };
    let done = |words: &[&str]| {
        let ended = run_on(&fleet, words);
        println!("redlatch {}: {ended:?}", words.join(" "));
        ended.with_code(0)
    };
    let refused = |code: i32, words: &[&str]| {
        let ended = run_on(&fleet, words);
        println!("redlatch {}: {ended:?}", words.join(" "));
        let ended = ended.with_code(code);
        assert!(ended.errors.contains(NO_LUA), "{ended:?}");
    };
    let token = done(&["acquire", "-t", "60s", "deploy"]).out.trim().to_owned();
    run_on(&fleet, &["acquire", "-n", "deploy"]).with_code(75);
    let status = run_on(&fleet, &["status", "deploy"]).with_code(1);
    assert!(status.out.contains(&token), "{status:?}");
    assert!(done(&["list"]).out.contains("deploy"));
    refused(125, &["extend", "-t", "60s", "deploy", &token]);
    done(&["release", "deploy", &token]);
    run_on(&fleet, &["release", "deploy", &token]).with_code(1);
    done(&["wait", "deploy"]);
    // The lock is kept while the command runs for longer than its ttl.
    let held = done(&["exec", "-t", "300ms", "deploy", "--", "sleep", "1"]);
    assert_eq!(held.errors, "");
    let token = done(&["acquire", "-t", "60s", "deploy"]).out;
    let deleted = done(&["force-release", "--yes", "deploy"]);
    assert!(deleted.out.contains(&format!("deleted {}", token.trim())), "{deleted:?}");
    refused(125, &["acquire", "a", "b"]);
    assert_eq!(fleet.keys_everywhere(), []);
    done(&["bench", "--duration", "200ms"]);
}

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
}
