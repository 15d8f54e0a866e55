//! `mandate serve` and the small commands beside it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Failure, run};
use crate::app::{Log, Mandate, store_options};
use crate::config::{Role, Settings};
use crate::service::Clock;
use crate::service::archive::ArchivedLogs;
use crate::shutdown::Shutdown;
use crate::store::Store;
use crate::telemetry;

/// How long a health check waits for its answer.
const HEALTHCHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until a signal ends it.
pub(super) fn serve(config: Option<&Path>, roles: Option<Vec<Role>>) -> Result<(), Failure> {
    let mut settings = Settings::load(config)?;
    if let Some(roles) = roles {
        settings.workers.roles = roles;
    }
    settings.validate()?;
    telemetry::init(&settings.telemetry)?;
    run(async {
        let shutdown = Shutdown::listen(Duration::from_secs(settings.server.shutdown_grace_seconds))?;
        let mandate = Mandate::build(settings, Clock::system()).await?;
        let listener = mandate.listen().await?;
        tracing::info!(address = %listener.local_addr()?, "serving");
        mandate.run(listener, shutdown).await;
        Ok(())
    })
}

/// Applies the migrations.
pub(super) fn migrate(config: Option<&Path>) -> Result<(), Failure> {
    let settings = Settings::load(config)?;
    settings.validate()?;
    run(async {
        Store::migrate_url(&store_options(&settings).url).await?;
        let log = Log::open(&settings)?;
        let migrated = log.migrate().await;
        log.store.close().await;
        migrated?;
        println!("the schemas are up to date");
        Ok(())
    })
}

/// Audits the database.
pub(super) fn audit(config: Option<&Path>) -> Result<(), Failure> {
    let settings = Settings::load(config)?;
    settings.validate()?;
    run(async {
        let store = Store::connect(&store_options(&settings))?;
        let log = Log::open(&settings)?;
        let audit = store.audit(Some(&ArchivedLogs::new(Arc::clone(&log.store)))).await;
        log.store.close().await;
        store.close().await;
        let audit = audit?;
        for finding in &audit.findings {
            println!("{}: {}", finding.place, finding.fault);
        }
        println!(
            "{} tasks, {} events and {} reports audited, {} findings",
            audit.tasks,
            audit.events,
            audit.reports,
            audit.findings.len()
        );
        if audit.findings.is_empty() { Ok(()) } else { Err("the audit found faults".into()) }
    })
}

/// Prints the OpenAPI document as it is committed.
pub(super) fn openapi() -> Result<(), Failure> {
    println!("{}", serde_json::to_string_pretty(&crate::http::document())?);
    Ok(())
}

/// Asks a running server whether it is ready.
pub(super) fn healthcheck(url: &str) -> Result<(), Failure> {
    run(async {
        let client = reqwest::Client::builder().timeout(HEALTHCHECK_TIMEOUT).no_proxy().build()?;
        let mut url: url::Url = url.parse()?;
        if url.path() == "/" {
            url.set_path("/readyz");
        }
        client.get(url).send().await?.error_for_status()?;
        Ok(())
    })
}
