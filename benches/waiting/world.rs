//! A durable PostgreSQL, processes of Mandate over it, and who calls them.

use mandate::dev::postgres::ManagedPostgres;
use tempfile::TempDir;

use super::Failure;
use super::seed::{Callers, people};
use super::service::{self, Service, Variables};

/// Everything that runs.
pub struct World {
    pub http: reqwest::Client,
    /// The process that commits, with the defaults.
    pub service: Service,
    pub callers: Callers,
    variables: Variables,
    postgres: ManagedPostgres,
    folder: TempDir,
}

impl World {
    pub async fn start() -> Result<Self, Failure> {
        let folder = service::folder()?;
        let postgres = service::start_postgres(folder.path()).await?;
        postgres.ensure_database("mandate").await?;
        let database_url = postgres.url("mandate");
        let (mint, issuers) = people(&folder.path().join("people.json"))?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        let variables = service::settings(folder.path(), &database_url, &issuers);
        let service = Service::start(folder.path(), "mandate", &variables, &http).await?;
        let callers = Callers::plant(&database_url, &service.base(), &http, &mint).await?;
        Ok(Self { http, service, callers, variables, postgres, folder })
    }

    /// One more process over the same database, with more settings: names without `MANDATE_`. Killed when it is dropped.
    pub async fn another(&self, name: &str, more: &[(&str, &str)]) -> Result<Service, Failure> {
        let more = more.iter().map(|(name, value)| (format!("MANDATE_{name}"), (*value).to_owned()));
        let variables = self.variables.iter().cloned().chain(more).collect();
        Service::start(self.folder.path(), name, &variables, &self.http).await
    }

    /// The PostgreSQL server's major version.
    pub fn postgres_version(&self) -> u32 {
        self.postgres.programs().major
    }

    /// Stops everything.
    pub async fn stop(mut self) -> Result<(), Failure> {
        self.service.kill().await?;
        Ok(self.postgres.stop().await?)
    }
}
