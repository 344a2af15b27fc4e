//! The observer without the feature `tracing`: records and reports nothing.

use super::{Ended, Interface, Verb};
use crate::proto::coordinator::{Coordinator, NodeEvent};
use crate::proto::error::Error;
use crate::proto::ids::Op;
use crate::proto::lock::Lock;
use crate::proto::locks::completions::Completion;
use crate::proto::locks::held::updates::LockUpdate;

/// In place of the span of a request.
#[derive(Debug)]
pub struct Watch;

impl Watch {
    #[inline]
    pub fn begin(_: Verb, _: &[u8]) -> Watch {
        Watch
    }

    #[inline]
    pub fn end<T: Ended>(self, _: &Result<T, Error>) {}

    #[inline]
    pub fn ends_as_sent(self) {}
}

/// In place of the observer of an engine.
#[derive(Debug)]
pub struct Observer;

impl Observer {
    #[inline]
    pub fn new(_: Interface) -> Observer {
        Observer
    }

    #[inline]
    pub fn belongs_to(&mut self, _: Interface) {}

    #[inline]
    pub fn key_of(&self, _: &Coordinator, _: &Lock) -> Option<Vec<u8>> {
        None
    }

    #[inline]
    pub fn asked(&mut self, _: &Result<Op, Error>, _: Verb, _: impl Sized) {}

    #[inline]
    pub fn sent(&self, _: impl Sized) {}

    #[inline]
    pub fn completed(&mut self, _: &Completion) {}

    #[inline]
    pub fn forget(&mut self, _: Op) {}

    #[inline]
    pub fn updated(&mut self, _: &LockUpdate) {}

    #[inline]
    pub fn report_node_events(&mut self, _: &mut Coordinator) {}

    #[inline]
    pub fn next_node_event(&mut self, core: &mut Coordinator) -> Option<NodeEvent> {
        core.poll_node_event()
    }

    #[inline]
    pub fn take(&mut self) -> Heard {
        Heard
    }
}

/// In place of the reports that a shared client collects.
#[derive(Debug)]
pub struct Heard;

impl Heard {
    #[inline]
    pub fn report(self) {}
}
