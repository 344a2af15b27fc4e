//! The second client: a thread that wants the lock the first one has, does as it is told, and tells
//! what came of it and how long it took.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use redlatch::{
    Client, Config, Error, LockOptions, LockToken, ReleaseOutcome, clock, clock::Instant,
};

use super::{GRAIN, KEY, Stop, TTL};

/// How long anything may take that bob does. Longer than the library waits for a lock.
const PATIENCE: Duration = Duration::from_secs(12);

/// What bob is told to do while he has the lock.
enum Order {
    Extend,
    Release,
}

/// What bob tells. Moments are those at which his call returned.
pub enum News {
    /// One attempt came to nothing.
    Refused { took: Duration, error: Error },
    /// The lock is his.
    Has { at: Instant, waited: Duration, token: LockToken, left: Duration },
    /// It is his for longer.
    Extended { at: Instant, took: Duration, left: Duration },
    /// He gave it back.
    Released { took: Duration, how: ReleaseOutcome },
}

/// The thread, from outside. When it is dropped, bob's client goes as well.
pub struct Bob {
    orders: Sender<Order>,
    node_events: Receiver<Result<News, Error>>,
}

impl Bob {
    /// Tries the lock once, and then waits for it.
    pub fn start(config: Config) -> Result<Bob, Stop> {
        let (orders, to_do) = channel();
        let (tell, node_events) = channel();
        let thread = move || {
            if let Err(error) = live(config, &to_do, &tell) {
                // Nobody listens any more where the demo has ended early.
                let _ = tell.send(Err(error));
            }
        };
        let started = std::thread::Builder::new().name("bob".into()).spawn(thread);
        started.map_err(|error| Stop::Failed(format!("no thread for bob: {error}")))?;
        Ok(Bob { orders, node_events })
    }

    pub fn extend(&self) {
        // A bob who is gone is noticed by his silence.
        let _ = self.orders.send(Order::Extend);
    }

    pub fn release(&self) {
        let _ = self.orders.send(Order::Release);
    }

    /// The next news, when they come.
    pub fn node_events(&self) -> Result<News, Stop> {
        match self.node_events.recv_timeout(PATIENCE) {
            Ok(node_events) => node_events.map_err(|error| Stop::Failed(format!("bob: {error}"))),
            Err(error) => Err(Stop::Failed(format!("nothing is heard of bob: {error}"))),
        }
    }

    /// Looks whether bob still does what he was told to do last: there must be no news of it yet.
    pub fn is_still_at_it(&self) -> Result<(), Stop> {
        match self.node_events.try_recv() {
            Err(TryRecvError::Empty) => Ok(()),
            Ok(Err(error)) => Err(Stop::Failed(format!("bob: {error}"))),
            Ok(Ok(_)) | Err(TryRecvError::Disconnected) => {
                Err(Stop::Failed("bob came to an end without a quorum".into()))
            }
        }
    }
}

fn live(
    config: Config,
    orders: &Receiver<Order>,
    tell: &Sender<Result<News, Error>>,
) -> Result<(), Error> {
    let say = |node_events| {
        // As above.
        let _ = tell.send(Ok(node_events));
    };
    let client = Client::connect(config)?;
    let start = clock::now();
    if let Err(error) = client.try_lock(KEY, TTL) {
        say(News::Refused { took: clock::now().saturating_since(start), error });
    }
    let start = clock::now();
    let mut guard = client.lock(KEY, LockOptions::new(TTL))?;
    let at = clock::now();
    let (waited, left) = (at.saturating_since(start), guard.remaining());
    say(News::Has { at, waited, token: guard.token(), left });
    while let Some(order) = next_order(orders, &client) {
        let start = clock::now();
        match order {
            Order::Extend => {
                guard.extend(TTL)?;
                let (at, left) = (clock::now(), guard.remaining());
                say(News::Extended { at, took: at.saturating_since(start), left });
            }
            Order::Release => {
                let how = guard.release()?;
                say(News::Released { took: clock::now().saturating_since(start), how });
                return Ok(());
            }
        }
    }
    Ok(())
}

/// What to do next; `None` when nobody is there to tell. Meanwhile bob's client pays what it owes:
/// a frozen node that goes on may do the first half of what an old attempt had sent there.
fn next_order(orders: &Receiver<Order>, client: &Client) -> Option<Order> {
    loop {
        match orders.try_recv() {
            Ok(order) => return Some(order),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => client.drive(GRAIN).ok()?,
        }
    }
}
