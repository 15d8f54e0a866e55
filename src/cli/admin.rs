//! `mandate admin` and `mandate keys`.

use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::{Failure, run};
use crate::app::{Mandate, key_ring};
use crate::config::Settings;
use crate::domain::ids::{PersonId, Slug};
use crate::service::Clock;

/// What no route can set up.
#[derive(Debug, Subcommand)]
pub(super) enum AdminCommand {
    /// Make an organization, unless it is there, and a member its administrator; running it again changes nothing.
    Init {
        /// The organization's slug.
        #[arg(long)]
        org: String,
        /// The organization's name; by default its slug.
        #[arg(long)]
        name: Option<String>,
        /// The administrator's id, as the subject claim of their tokens gives it.
        #[arg(long)]
        admin: String,
        /// The settings file.
        #[arg(long)]
        config: Option<PathBuf>,
    },
}

/// The server's signing keys.
#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    /// Make a new signing key in the data folder; tokens of the old one stay valid, and no server needs a restart.
    Rotate {
        /// The settings file.
        #[arg(long)]
        config: Option<PathBuf>,
    },
}

pub(super) fn admin(command: AdminCommand) -> Result<(), Failure> {
    let AdminCommand::Init { org, name, admin, config } = command;
    let settings = load(config.as_deref())?;
    let slug: Slug = org.parse().map_err(|fault| format!("--org: {fault}"))?;
    let person = PersonId::parse(&admin).map_err(|fault| format!("--admin: {fault}"))?;
    run(async {
        let mandate = Mandate::build(settings, Clock::system()).await?;
        let name = name.as_deref().unwrap_or(&org);
        mandate.service().init_organization(&slug, name, &person).await.map_err(|fault| format!("{fault:?}"))?;
        mandate.close().await;
        println!("organization {slug} has the administrator {person}");
        Ok(())
    })
}

pub(super) fn keys(command: KeysCommand) -> Result<(), Failure> {
    let KeysCommand::Rotate { config } = command;
    let settings = load(config.as_deref())?;
    if settings.auth.signing_key.is_some() {
        return Err("auth.signing_key is set: rotate it there, and put the old one into auth.retired_keys".into());
    }
    let ring = key_ring(&settings)?;
    let kid = ring.rotate(&crate::app::key_folder(&settings))?;
    println!("the signing key is now {kid}");
    Ok(())
}

fn load(config: Option<&Path>) -> Result<Settings, Failure> {
    let settings = Settings::load(config)?;
    settings.validate()?;
    Ok(settings)
}
