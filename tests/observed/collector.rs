//! A subscriber that keeps every span and event of the library. It is the subscriber of the whole
//! process, because a driver has a thread of its own. So each test looks only at its own keys and
//! nodes.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use redlatch::SharedClient;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The fields of a span or an event, as text.
pub type Fields = BTreeMap<String, String>;

/// The spans, with their names and levels as fields `span` and `level`, and the events in their
/// order.
#[derive(Debug, Default)]
struct Collected {
    spans: Vec<Fields>,
    events: Vec<Fields>,
}

static COLLECTED: Mutex<Collected> =
    Mutex::new(Collected { spans: Vec::new(), events: Vec::new() });

fn collected() -> MutexGuard<'static, Collected> {
    COLLECTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client that the subscriber calls at each event.
static CALLED: Mutex<Option<SharedClient>> = Mutex::new(None);

/// Makes the subscriber call this client at each event; `None`: no client.
pub fn call(client: Option<SharedClient>) {
    let former = std::mem::replace(&mut *CALLED.lock().unwrap(), client);
    drop(former);
}

/// Installs the subscriber.
pub fn begin() {
    static BEGIN: Once = Once::new();
    BEGIN.call_once(|| {
        tracing::subscriber::set_global_default(Collector).expect("there is no other");
    });
}

/// The spans whose fields have these values, in the order in which they began.
pub fn spans(wanted: &[(&str, &str)]) -> Vec<Fields> {
    collected().spans.iter().filter(|it| has(it, wanted)).cloned().collect()
}

/// The events whose fields have these values.
pub fn events(wanted: &[(&str, &str)]) -> Vec<Fields> {
    collected().events.iter().filter(|it| has(it, wanted)).cloned().collect()
}

fn has(fields: &Fields, wanted: &[(&str, &str)]) -> bool {
    wanted.iter().all(|(name, value)| fields.get(*name).is_some_and(|it| it == value))
}

struct Collector;

struct Into<'a>(&'a mut Fields);

impl Visit for Into<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().into(), format!("{value:?}"));
    }
}

fn of(metadata: &Metadata<'_>, record: impl FnOnce(&mut Into<'_>)) -> Fields {
    let mut fields = Fields::new();
    fields.insert("level".into(), metadata.level().to_string());
    record(&mut Into(&mut fields));
    fields
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "redlatch"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = of(span.metadata(), |into| span.record(into));
        fields.insert("span".into(), span.metadata().name().into());
        let mut collected = collected();
        collected.spans.push(fields);
        Id::from_u64(collected.spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let index = span.into_u64() as usize - 1;
        values.record(&mut Into(&mut collected().spans[index]));
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = of(event.metadata(), |into| event.record(into));
        let mut collected = collected();
        if let Some(parent) = event.parent() {
            let parent = &collected.spans[parent.into_u64() as usize - 1];
            fields.insert("in".into(), parent["span"].clone());
            fields.insert("key".into(), parent["key"].clone());
        }
        collected.events.push(fields);
        drop(collected);
        let called = CALLED.lock().unwrap().clone();
        if let Some(client) = called {
            client.stats();
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
