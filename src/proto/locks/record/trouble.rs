//! The fields that few records need: nodes that lost the key, lines, adoption, fencing numbers,
//! several keys. They are boxed, so that a plain lock on healthy nodes does not pay for them.

use crate::proto::lock::LockToken;
use crate::proto::locks::fence::number::Fencing;
use crate::proto::locks::line::votes::Line;
use crate::proto::locks::record::records::Record;
use crate::proto::locks::set::keys::SetOfKeys;
use crate::proto::node_set::{NodeId, NodeSet};

/// The fields that few records need.
#[derive(Debug, Clone, Default)]
pub struct Trouble {
    /// Nodes that answered an extend that the key is absent or another client's, and were not
    /// healed since.
    pub absent: NodeSet,
    /// The `absent` nodes that answered that another client has the key.
    pub taken: NodeSet,
    /// Nodes with an unanswered heal.
    pub healing: NodeSet,
    /// Nodes that refuse the script of the line: there the lock is released by the plain release,
    /// which hands nothing over.
    pub plain: NodeSet,
    /// What is known of the lines that the token stands in, or stood in.
    pub line: Option<Box<Line>>,
    /// The token with which another client gave the lock away, if this record adopts it.
    pub taken_up: Option<Box<LockToken>>,
    /// The votes for the fencing number, and the number.
    pub fencing: Option<Box<Fencing>>,
    /// The keys, if there are several.
    pub set: Option<Box<SetOfKeys>>,
}

impl Record {
    /// [`Trouble`], to change it: made if there is none.
    pub fn trouble_mut(&mut self) -> &mut Trouble {
        self.trouble.get_or_insert_default()
    }

    /// [`Trouble::absent`].
    pub fn absent(&self) -> NodeSet {
        self.trouble.as_ref().map_or(NodeSet::EMPTY, |trouble| trouble.absent)
    }

    /// [`Trouble::taken`].
    pub fn taken(&self) -> NodeSet {
        self.trouble.as_ref().map_or(NodeSet::EMPTY, |trouble| trouble.taken)
    }

    /// [`Trouble::healing`].
    #[inline]
    pub fn healing(&self) -> NodeSet {
        self.trouble.as_ref().map_or(NodeSet::EMPTY, |trouble| trouble.healing)
    }

    /// [`Trouble::plain`].
    #[inline]
    pub fn plain(&self) -> NodeSet {
        self.trouble.as_ref().map_or(NodeSet::EMPTY, |trouble| trouble.plain)
    }

    /// [`Trouble::line`].
    #[inline]
    pub fn line(&self) -> Option<&Line> {
        self.trouble.as_ref()?.line.as_deref()
    }

    /// [`Trouble::line`], to change it.
    pub fn line_mut(&mut self) -> Option<&mut Line> {
        self.trouble.as_mut()?.line.as_deref_mut()
    }

    /// [`Trouble::taken_up`].
    #[inline]
    pub fn taken_up(&self) -> Option<&LockToken> {
        self.trouble.as_ref()?.taken_up.as_deref()
    }

    /// A node that had lost the key has handed it over to this held lock. So it does not count as
    /// absent any more, unless a heal is in flight, whose answer decides. The next extend shows
    /// whether the key counts there.
    pub fn note_return_of(&mut self, node: NodeId) {
        if let Some(trouble) = self.trouble.as_mut().filter(|it| !it.healing.contains(node)) {
            trouble.absent.remove(node);
            trouble.taken.remove(node);
        }
    }

    /// The heal of a node was answered, or lost with its connection.
    pub fn end_heal(&mut self, node: NodeId) {
        if let Some(trouble) = &mut self.trouble {
            trouble.healing.remove(node);
        }
    }
}
