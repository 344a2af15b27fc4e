//! `MULTI`, `EXEC` and `DISCARD`: a connection queues commands, which then run together or not at
//! all.

use super::commands::{self, Command};
use super::reply::Reply;
use super::{Call, Master};

/// The commands that a connection queued since its `MULTI`.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue {
    commands: Vec<Vec<Vec<u8>>>,
    /// One of them was refused, so `EXEC` runs none.
    refused: bool,
}

pub(super) fn multi(master: &mut Master, call: &Call) -> Reply {
    let queue = &mut master.own(call).queue;
    if queue.is_some() {
        return Reply::error("ERR MULTI calls can not be nested");
    }
    *queue = Some(Queue::default());
    Reply::OK
}

pub(super) fn discard(master: &mut Master, call: &Call) -> Reply {
    match master.own(call).queue.take() {
        Some(_) => Reply::OK,
        None => Reply::error("ERR DISCARD without MULTI"),
    }
}

pub(super) fn exec(master: &mut Master, call: &Call) -> Reply {
    let Some(queue) = master.own(call).queue.take() else {
        return Reply::error("ERR EXEC without MULTI");
    };
    if queue.refused {
        return Reply::error("EXECABORT Transaction discarded because of previous errors.");
    }
    let run = |words: &Vec<Vec<u8>>| {
        let command = commands::find(master.flavor, words).expect("it was found before");
        let inner = Call { wall: call.wall, connection: call.connection, words };
        command.execute(master, &inner, command.keys_of(words))
    };
    Reply::Array(queue.commands.iter().map(run).collect())
}

/// Queues the command if its connection is in a transaction. Returns whether it did.
pub(super) fn queues(master: &mut Master, call: &Call, command: &Command) -> bool {
    let runs = matches!(command.name, "multi" | "exec" | "discard" | "quit" | "reset");
    match &mut master.own(call).queue {
        Some(queue) if !runs => {
            queue.commands.push(call.words.to_vec());
            true
        }
        _ => false,
    }
}

/// A command was refused before it ran, for this cause. In a transaction `EXEC` runs nothing then.
/// Returns the reply.
pub(super) fn refuse(
    master: &mut Master,
    call: &Call,
    command: Option<&Command>,
    refusal: Reply,
) -> Reply {
    let queue = &mut master.own(call).queue;
    let executes = command.is_some_and(|command| command.name == "exec");
    match queue {
        Some(_) if executes => *queue = None,
        Some(queue) => queue.refused = true,
        None => return refusal,
    }
    match refusal {
        Reply::Error(line) if executes => {
            let abort = b"EXECABORT Transaction discarded because of: ";
            Reply::Error([&abort[..], &line].concat())
        }
        refusal => refusal,
    }
}
