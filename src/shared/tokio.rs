//! The driver of a shared client as a task of a tokio runtime: it makes the same turns as a
//! thread, woken through the one descriptor of the poller.
//!
//! The hazard is a runtime that ends with the task in it: then every waiting call has to end, as
//! after a panic of a driver's thread.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task;

use super::SharedClient;
use super::driving::Driving;
use super::inner::{Inner, PATIENCE, Turned};
use crate::config::Config;
use crate::net::clock;
use crate::net::connecting::{Connecting, refuse_one_server_twice};
use crate::net::reactor::{Reactor, system};
use crate::proto::error::{ClosedReason, ConfigError, Error};

impl SharedClient {
    /// Connects to the nodes, and starts a task on this tokio runtime that drives the client,
    /// instead of a thread. Names are looked up on a blocking thread. Waits for the nodes as
    /// [`Client::connect`](crate::Client::connect) does. Linux only.
    ///
    /// The client can be used from other runtimes and threads, too. When its runtime ends, every
    /// call and every auto-extended lock ends as [`Error::Closed`].
    ///
    /// On a current-thread runtime the client is not driven while the thread is blocked, or is
    /// outside of `block_on`: do not [`wait`](super::Call::wait) for its calls there. Auto-extended
    /// locks are not renewed meanwhile. A request made on a blocked thread, also the release of a
    /// dropped guard, may be written only when the runtime runs again or ends.
    ///
    /// On a multi-thread runtime a task that blocks its worker may hold up tokio's driver, and
    /// this client with it: wait in `tokio::task::block_in_place` or `spawn_blocking` there.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use redlatch::{Config, LockOptions, SharedClient};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// let locks = SharedClient::connect_tokio(config).await?;
    /// let guard = locks.lock("invoice:42", Duration::from_secs(30)).await?;
    /// guard.release().await?;
    ///
    /// // Your own timeout: the call is dropped then, which takes it back.
    /// let call = locks.lock("invoice:42", Duration::from_secs(30));
    /// let guard = tokio::time::timeout(Duration::from_secs(5), call).await??;
    /// drop(guard);
    ///
    /// // Renewed while you work, which ends if the lock is lost.
    /// let (ttl, hour) = (Duration::from_secs(30), Duration::from_secs(3600));
    /// let options = LockOptions::new(ttl).auto_extend(hour);
    /// let guard = locks.lock("report", options).await?;
    /// tokio::select! {
    ///     () = tokio::time::sleep(Duration::from_millis(20)) => println!("the work is done"),
    ///     why = guard.lost() => return Err(why.into()),
    /// }
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Only for a configuration that cannot work, if the system refuses a resource, or outside of
    /// a tokio runtime.
    ///
    /// # Panics
    /// If the runtime was built without I/O.
    pub async fn connect_tokio(config: Config) -> Result<SharedClient, Error> {
        let problem = |text: &str| Error::Config(ConfigError::System { problem: text.into() });
        if Handle::try_current().is_err() {
            return Err(problem(
                "connect_tokio: called outside of a tokio runtime; call it inside one",
            ));
        }
        let made = task::spawn_blocking(|| Reactor::of(config)).await;
        let (reactor, mut engine) = made.map_err(|_| problem("name lookup: its task ended"))??;
        if !engine.has_alarm() {
            return Err(problem("system timer: it cannot be polled"));
        }
        let waker = reactor.waker()?;
        let mut reactor = readable(reactor)?;
        let mut connecting = Connecting::new(engine.coordinator(), clock::now());
        while let Some(until) = connecting.wait_until(engine.coordinator(), clock::now()) {
            engine.wake_by(Some(until));
            engine.prepare();
            take_events(&mut reactor).await?;
            reactor.get_ref().hand_over(&mut engine);
        }
        engine.wake_by(None);
        refuse_one_server_twice(engine.coordinator(), clock::now())?;
        let stops = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
        let outside = || Handle::try_current().is_err();
        let outside = stops.then_some(outside as fn() -> bool);
        let inner = Arc::new(Inner::new(engine, waker, Driving::by_task(), outside));
        let driver = Driver { inner: Arc::clone(&inner), reactor };
        task::spawn(driver.run());
        Ok(SharedClient::of(inner))
    }
}

/// Owned by the task: its drop, also with its runtime, ends every waiting call.
struct Driver {
    inner: Arc<Inner>,
    reactor: AsyncFd<Reactor>,
}

impl Driver {
    async fn run(mut self) {
        let mut turned = self.inner.sleeps(false);
        let mut patience = PATIENCE;
        loop {
            match turned {
                Turned::Asleep(_) => {
                    if take_events(&mut self.reactor).await.is_err() {
                        return;
                    }
                    self.inner.set_awake();
                    turned = self.inner.turn(|engine| self.reactor.get_ref().hand_over(engine));
                    patience = PATIENCE;
                }
                Turned::Awake => {
                    // Lets the woken calls run first, so that their requests are written together.
                    task::yield_now().await;
                    patience -= 1;
                    turned = self.inner.sleeps(patience > 0);
                }
                Turned::Over => return,
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.inner.end(ClosedReason::DriverGone);
    }
}

/// The poller, registered with the runtime.
///
/// # Errors
/// If the system refuses it.
#[allow(
    deprecated,
    reason = "what replaces it is unsafe; a poller keeps its descriptor to its end"
)]
fn readable(reactor: Reactor) -> Result<AsyncFd<Reactor>, Error> {
    AsyncFd::with_interest(reactor, Interest::READABLE)
        .map_err(|error| system("the poller is refused", &error).into())
}

/// Waits until the poller has events, and takes all of them. Events that come after that make the
/// descriptor readable again.
async fn take_events(reactor: &mut AsyncFd<Reactor>) -> Result<(), Error> {
    let failed = |error| Error::from(system("the poller failed", &error));
    let mut ready = reactor.readable_mut().await.map_err(failed)?;
    ready.get_inner_mut().wait(Some(Duration::ZERO)).map_err(failed)?;
    ready.clear_ready();
    Ok(())
}
