//! Two stores that check fencing numbers: SQLite and PostgreSQL.
//!
//! The whole check is one condition: a row is changed only by a number that is greater than the
//! row's own. The store decides that in one statement, so two writers cannot interleave.
//!
//! A store with conditional puts, such as S3, does the same in two steps: read the object with its
//! `ETag` and the number in its metadata, give up if that number is not smaller, and put the new
//! object with `If-Match` of that `ETag`.
//!
//! The hazard is a row that is written without a number: the store cannot order such a write.

#![forbid(unsafe_code)]

mod postgresql;
mod sqlite;

pub use postgresql::PostgreSql;
pub use sqlite::Sqlite;

/// What went wrong in a store.
pub type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// A store of reports that refuses late writes.
pub trait Store {
    /// Writes the value under this number. Returns `false` if the store has a greater number, or
    /// this one, already: the writer is not the last holder of the lock.
    ///
    /// # Errors
    /// What the store reports.
    fn save(&mut self, id: i64, value: &str, fence: u64) -> Result<bool, Trouble>;

    /// The value of a report, and the number under which it was written.
    ///
    /// # Errors
    /// What the store reports.
    fn read(&mut self, id: i64) -> Result<(String, u64), Trouble>;
}

/// Opens a store by its URL: `sqlite:PATH` or `postgresql://...`. It has report 1 from then on.
///
/// # Errors
/// What the store reports.
pub fn open(url: &str) -> Result<Box<dyn Store>, Trouble> {
    match url.strip_prefix("sqlite:") {
        Some(path) => Ok(Box::new(Sqlite::open(path)?)),
        None => Ok(Box::new(PostgreSql::connect(url)?)),
    }
}

/// A fencing number as the stores keep it: they have no unsigned numbers, and no counter reaches
/// 2^53.
fn stored(fence: u64) -> Result<i64, Trouble> {
    Ok(i64::try_from(fence)?)
}
