//! PostgreSQL: the `UPDATE` writes only if the stored fencing number is lower than its own. Under
//! READ COMMITTED a second `UPDATE` of the row waits for the first one, and then checks that again.

use postgres::{Client, NoTls};

use crate::{Store, Trouble, stored};

/// A connection to a server.
pub struct PostgreSql(Client);

impl PostgreSql {
    /// Connects, and makes the table if there is none.
    ///
    /// # Errors
    /// What the server reports.
    pub fn connect(url: &str) -> Result<PostgreSql, Trouble> {
        let mut client = Client::connect(url, NoTls)?;
        // Two clients may come here at once: `IF NOT EXISTS` alone does not keep them apart.
        client.batch_execute(
            "BEGIN;
             SELECT pg_advisory_xact_lock(1);
             CREATE TABLE IF NOT EXISTS report (
                 id BIGINT PRIMARY KEY, v TEXT NOT NULL, fence BIGINT NOT NULL);
             INSERT INTO report VALUES (1, '', 0) ON CONFLICT DO NOTHING;
             COMMIT;",
        )?;
        Ok(PostgreSql(client))
    }
}

impl Store for PostgreSql {
    fn save(&mut self, id: i64, value: &str, fence: u64) -> Result<bool, Trouble> {
        let update = "UPDATE report SET v = $1, fence = $2 WHERE id = $3 AND fence < $2";
        Ok(self.0.execute(update, &[&value, &stored(fence)?, &id])? == 1)
    }

    fn read(&mut self, id: i64) -> Result<(String, u64), Trouble> {
        let row = self.0.query_one("SELECT v, fence FROM report WHERE id = $1", &[&id])?;
        Ok((row.get(0), u64::try_from(row.get::<_, i64>(1))?))
    }
}
