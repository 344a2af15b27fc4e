//! SQLite: the check is the condition of an `UPDATE`.

use std::time::Duration;

use rusqlite::{Connection, params};

use crate::{Store, Trouble, stored};

/// A database in a file.
pub struct Sqlite(Connection);

impl Sqlite {
    /// Opens the database, and makes its table if there is none.
    ///
    /// # Errors
    /// What SQLite reports.
    pub fn open(path: &str) -> Result<Sqlite, Trouble> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS report (
                 id INTEGER PRIMARY KEY, v TEXT NOT NULL, fence INTEGER NOT NULL);
             INSERT OR IGNORE INTO report VALUES (1, '', 0);",
        )?;
        Ok(Sqlite(connection))
    }
}

impl Store for Sqlite {
    fn save(&mut self, id: i64, value: &str, fence: u64) -> Result<bool, Trouble> {
        let update = "UPDATE report SET v = ?1, fence = ?2 WHERE id = ?3 AND fence < ?2";
        Ok(self.0.execute(update, params![value, stored(fence)?, id])? == 1)
    }

    fn read(&mut self, id: i64) -> Result<(String, u64), Trouble> {
        let select = "SELECT v, fence FROM report WHERE id = ?1";
        let row = self.0.query_row(select, [id], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))?;
        Ok((row.0, u64::try_from(row.1)?))
    }
}
