//! The metrics of the `metrics` facade, with a recorder that keeps every value.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use redlatch::testing::tcp::Masters;
use redlatch::{Client, MetricsPublisher};

use super::{config, ready};

const TTL: Duration = Duration::from_secs(10);

/// By metric with its labels: the sum of a counter, the value of a gauge, or the count and the sum
/// of a histogram.
#[derive(Debug, Default, Clone)]
struct Kept(Arc<Mutex<BTreeMap<String, (u64, f64)>>>);

impl Kept {
    fn get(&self, name: &str) -> Option<(u64, f64)> {
        self.0.lock().unwrap().get(name).copied()
    }

    fn metric(&self, key: &Key) -> Arc<Metric> {
        let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
        let name = format!("{}{}", key.name(), labels.collect::<String>());
        Arc::new(Metric { kept: self.clone(), name })
    }
}

struct Metric {
    kept: Kept,
    name: String,
}

impl Metric {
    fn change(&self, change: impl FnOnce(&mut (u64, f64))) {
        change(self.kept.0.lock().unwrap().entry(self.name.clone()).or_default());
    }
}

impl CounterFn for Metric {
    fn increment(&self, value: u64) {
        self.change(|it| it.0 += value);
    }

    fn absolute(&self, value: u64) {
        panic!("two clients would count together: {value}");
    }
}

impl GaugeFn for Metric {
    fn increment(&self, value: f64) {
        self.change(|it| it.1 += value);
    }

    fn decrement(&self, value: f64) {
        self.change(|it| it.1 -= value);
    }

    fn set(&self, value: f64) {
        self.change(|it| it.1 = value);
    }
}

impl HistogramFn for Metric {
    fn record(&self, value: f64) {
        self.change(|it| *it = (it.0 + 1, it.1 + value));
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.metric(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.metric(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.metric(key))
    }
}

fn publish(client: &Client, publisher: &mut MetricsPublisher, kept: &Kept) {
    let nodes: Vec<_> = ["a", "b", "c"].into_iter().zip(client.nodes()).collect();
    metrics::with_local_recorder(kept, || publisher.publish(&client.stats(), &nodes));
}

#[test]
fn metrics_are_published_once_each_and_add_up_over_clients() {
    let masters = Masters::start(3).unwrap();
    let clients = [1, 2].map(|_| ready::client(config(&masters)));
    let mut publishers = [MetricsPublisher::new(), MetricsPublisher::new()];
    let kept = Kept::default();
    let mut publish_all = || {
        for (client, publisher) in clients.iter().zip(&mut publishers) {
            publish(client, publisher, &kept);
        }
    };
    let mut guard = clients[0].lock("measured", TTL).unwrap();
    guard.extend(TTL).unwrap();
    assert!(clients[1].try_lock("measured", TTL).is_err());
    let other = clients[1].lock("another", TTL).unwrap();
    for _ in 0..2 {
        publish_all();
        assert_eq!(kept.get("redlatch_attempts_total outcome=won"), Some((2, 0.0)));
        assert_eq!(kept.get("redlatch_attempts_total outcome=contended"), Some((1, 0.0)));
        assert_eq!(kept.get("redlatch_extends_total"), Some((1, 0.0)));
        assert_eq!(kept.get("redlatch_locks_held"), Some((0, 2.0)));
        assert_eq!(kept.get("redlatch_node_can_grant node=a"), Some((0, 1.0)));
    }
    let (waits, together) = kept.get("redlatch_wait_seconds").unwrap();
    assert!(waits == 2 && together > 0.0, "{waits} waits, {together} s together");
    assert_eq!(kept.get("redlatch_hold_seconds"), None);
    std::thread::sleep(Duration::from_millis(50));
    guard.release().unwrap();
    drop(other);
    masters.iter().next().unwrap().kill();
    // The clients also read the answers that follow those of the majority.
    clients.iter().for_each(|client| client.drive(Duration::from_millis(300)).unwrap());
    publish_all();
    assert_eq!(kept.get("redlatch_locks_held"), Some((0, 0.0)));
    assert_eq!(kept.get("redlatch_locks_released_total"), Some((2, 0.0)));
    assert_eq!(kept.get("redlatch_locks_lost_total"), Some((0, 0.0)));
    let (holds, together) = kept.get("redlatch_hold_seconds").unwrap();
    assert!(holds == 2 && together > 0.06, "{holds} holds, {together} s together");
    assert!(kept.get("redlatch_node_round_trip_seconds node=b").unwrap().0 >= 4);
    assert!(kept.get("redlatch_node_connection_failures_total node=a").unwrap().0 >= 1);
}
