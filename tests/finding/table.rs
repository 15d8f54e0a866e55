//! A table of a million tasks in a database of its own.

use mandate::app::store_options;
use mandate::config::{SecretUrl, Settings};
use mandate::store::Store;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use uuid::Uuid;

use crate::support::database;

/// So many.
pub const TASKS: u32 = 1_000_000;

/// The organization of nearly all tasks.
pub fn organization() -> Uuid {
    "00000000-0000-7000-8000-000000000001".parse().unwrap()
}

/// The values that the generation gives, and the id that goes with each.
pub const VALUES: [(&str, u128); 3] = [("rare", 1), ("frequent", 2), ("other-107", 107)];

/// The id of the agent, the project and the trigger of that number.
pub fn id_of(number: u128) -> Uuid {
    Uuid::from_u128(0x0000_0000_0000_7000_9000_0000_0000_0000 + number)
}

/// A database with the tasks.
pub struct Table {
    url: String,
}

impl Table {
    /// Generates it.
    pub async fn generate() -> Self {
        let url = database::create().await;
        let mut db = PgConnection::connect(&url).await.unwrap();
        // Should the test fail before it drops the database.
        db.execute("CREATE TABLE public.spoiled_on_purpose ()").await.unwrap();
        db.execute(AssertSqlSafe(format!("SET finding.tasks = {TASKS}"))).await.unwrap();
        db.execute(include_str!("generate.sql")).await.unwrap();
        db.close().await.unwrap();
        Self { url }
    }

    /// A store over it.
    pub fn store(&self) -> Store {
        let mut settings = Settings::default();
        settings.database.url = SecretUrl::new(self.url.clone());
        settings.database.max_connections = 1;
        Store::connect(&store_options(&settings)).unwrap()
    }

    /// It is large.
    pub async fn drop(self) {
        database::drop(&self.url).await;
    }
}
