//! The second client of the demo, on a thread of its own: waits for the lock that the first client
//! has, then extends and releases it when the demo orders that. Reports the result of each call and
//! how long it took.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use redlatch::{
    Client, Config, Error, LockOptions, LockToken, ReleaseOutcome, clock, clock::Instant,
};

use super::{KEY, POLL_INTERVAL, Stop, TTL};

/// How long the demo waits for bob's next report: longer than bob's client waits for a lock.
const PATIENCE: Duration = Duration::from_secs(12);

/// An order to bob while he has the lock.
enum Order {
    Extend,
    Release,
}

/// What bob reports. Each `at` is the moment at which bob's call returned.
pub enum Report {
    /// One attempt failed.
    Refused { took: Duration, error: Error },
    /// He has the lock.
    Has { at: Instant, waited: Duration, token: LockToken, left: Duration },
    /// He has the lock for longer.
    Extended { at: Instant, took: Duration, left: Duration },
    /// He released the lock.
    Released { took: Duration, how: ReleaseOutcome },
}

/// The handle of bob's thread. Dropping it drops bob's client as well.
pub struct Bob {
    orders: Sender<Order>,
    reports: Receiver<Result<Report, Error>>,
}

impl Bob {
    /// Starts bob, who tries to acquire the lock once, and then waits for it.
    pub fn start(config: Config) -> Result<Bob, Stop> {
        let (orders, to_do) = channel();
        let (sender, reports) = channel();
        let thread = move || {
            if let Err(error) = follow_orders(config, &to_do, &sender) {
                // If the demo has ended early, no receiver is left.
                let _ = sender.send(Err(error));
            }
        };
        let started = std::thread::Builder::new().name("bob".into()).spawn(thread);
        started.map_err(|error| Stop::Failed(format!("no thread for bob: {error}")))?;
        Ok(Bob { orders, reports })
    }

    pub fn extend(&self) {
        // If bob's thread has ended, `next_report` returns the error.
        let _ = self.orders.send(Order::Extend);
    }

    pub fn release(&self) {
        let _ = self.orders.send(Order::Release);
    }

    /// Waits for bob's next report.
    pub fn next_report(&self) -> Result<Report, Stop> {
        match self.reports.recv_timeout(PATIENCE) {
            Ok(report) => report.map_err(|error| Stop::Failed(format!("bob: {error}"))),
            Err(error) => Err(Stop::Failed(format!("nothing is heard of bob: {error}"))),
        }
    }

    /// Checks that bob's last call has not returned yet.
    pub fn check_still_busy(&self) -> Result<(), Stop> {
        match self.reports.try_recv() {
            Err(TryRecvError::Empty) => Ok(()),
            Ok(Err(error)) => Err(Stop::Failed(format!("bob: {error}"))),
            Ok(Ok(_)) | Err(TryRecvError::Disconnected) => {
                Err(Stop::Failed("bob came to an end without a quorum".into()))
            }
        }
    }
}

fn follow_orders(
    config: Config,
    orders: &Receiver<Order>,
    sender: &Sender<Result<Report, Error>>,
) -> Result<(), Error> {
    let report = |report| {
        // If the demo has ended, no receiver is left.
        let _ = sender.send(Ok(report));
    };
    let client = Client::connect(config)?;
    let start = clock::now();
    if let Err(error) = client.try_lock(KEY, TTL) {
        report(Report::Refused { took: clock::now().saturating_since(start), error });
    }
    let start = clock::now();
    let mut guard = client.lock(KEY, LockOptions::new(TTL))?;
    let at = clock::now();
    let (waited, left) = (at.saturating_since(start), guard.remaining());
    report(Report::Has { at, waited, token: guard.token(), left });
    while let Some(order) = next_order(orders, &client) {
        let start = clock::now();
        match order {
            Order::Extend => {
                guard.extend(TTL)?;
                let (at, left) = (clock::now(), guard.remaining());
                report(Report::Extended { at, took: at.saturating_since(start), left });
            }
            Order::Release => {
                let how = guard.release()?;
                report(Report::Released { took: clock::now().saturating_since(start), how });
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Waits for bob's next order; `None` if the demo has dropped its [`Bob`]. Meanwhile bob's client
/// is driven, so that it sends pending releases: a node that was frozen may execute the acquire of
/// an old attempt when it goes on, and needs the release.
fn next_order(orders: &Receiver<Order>, client: &Client) -> Option<Order> {
    loop {
        match orders.try_recv() {
            Ok(order) => return Some(order),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => client.drive(POLL_INTERVAL).ok()?,
        }
    }
}
