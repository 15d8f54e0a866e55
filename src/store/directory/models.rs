//! Models: their names, which harnesses report, and their prices, which are never rewritten once they were in force.

use std::time::Duration;

use sqlx::Row;
use time::OffsetDateTime;

use super::edit::{Edit, EditError, Editing, Put, new_name};
use super::record::Record;
use crate::directory::records::{Action, Key, Model, ModelDraft, PricePoint};
use crate::domain::ids::ModelId;
use crate::domain::money::Price;
use crate::domain::refusal::{Fault, Refusal};
use crate::domain::time::Timestamp;
use crate::store::Store;
use crate::store::error::StoreError;

impl Store {
    /// Makes a model, or changes it. Its answer shows the prices at the moment of the change.
    pub async fn put_model(&self, edit: Edit, key: &Key, draft: &ModelDraft) -> Result<Put<Model>, EditError> {
        let mut editing = self.edit(edit).await?;
        let before = editing.find::<Model>(key).await?;
        let mut after = match &before {
            Some(before) => before.clone(),
            None => Model {
                id: ModelId(editing.new_id()),
                slug: new_name::<Model>(key)?,
                provider: String::new(),
                model_id: String::new(),
                aliases: Vec::new(),
                external_ref: None,
                prices: Vec::new(),
                created_at: editing.at,
                updated_at: editing.at,
            },
        };
        after.provider.clone_from(&draft.provider);
        after.model_id.clone_from(&draft.model_id);
        if let Some(aliases) = &draft.aliases {
            after.aliases.clone_from(aliases);
        }
        after.external_ref.clone_from(&draft.external_ref);
        let point = new_prices(&after, draft, editing.at);
        if let Some(point) = point {
            after.prices.retain(|known| known.effective_from != point.effective_from);
            after.prices.push(point);
            after.prices.sort_by_key(|point| std::cmp::Reverse(point.effective_from));
        }
        if before.as_ref() == Some(&after) {
            return Ok(Put { record: after, created: false });
        }
        after.updated_at = editing.at;
        editing.refuse_taken_names(&after).await?;
        editing.write_model(&after).await?;
        editing.write_names(&after).await?;
        if let Some(point) = point {
            editing.write_prices(after.id, &point).await?;
        }
        let action = if before.is_some() { Action::Updated } else { Action::Created };
        editing.audit(action, before.as_ref(), Some(&after)).await?;
        editing.commit().await?;
        Ok(Put { record: after, created: before.is_none() })
    }

    /// Removes a model and frees its names. Ledger rows keep its id and the prices that they used.
    pub async fn delete_model(&self, edit: Edit, id: ModelId) -> Result<(), EditError> {
        let mut editing = self.edit(edit).await?;
        let before: Model = editing.existing(&Key::Id(id.0)).await?;
        let names = sqlx::query("DELETE FROM agent_directory.model_names WHERE organization_id = $1 AND model_id = $2")
            .bind(editing.organization())
            .bind(id.0);
        editing.run(names).await?;
        let model = sqlx::query(
            "UPDATE agent_directory.models SET deleted_at = $3, updated_at = $3
             WHERE organization_id = $1 AND id = $2",
        )
        .bind(editing.organization())
        .bind(id.0)
        .bind(editing.instant());
        editing.run(model).await?;
        editing.audit(Action::Deleted, Some(&before), None).await?;
        editing.commit().await
    }
}

/// The row that a draft's prices become, if they say anything new. What lies ahead may be replaced; what was in force
/// stays as it was, so a claim about that time holds from now on.
fn new_prices(model: &Model, draft: &ModelDraft, now: Timestamp) -> Option<PricePoint> {
    let prices = draft.prices?;
    let point = |effective_from| Some(PricePoint { effective_from, prices });
    if let Some(from) = draft.effective_from {
        let known = model.prices.iter().find(|known| known.effective_from == from);
        if known.is_some_and(|known| known.prices == prices) {
            return None;
        }
        if from > now {
            return point(from);
        }
    }
    let in_force = model.in_force(now);
    if in_force.map(|known| known.prices).unwrap_or_default() == prices {
        return None;
    }
    let last = in_force.map(|known| known.effective_from);
    if let Some(from) = draft.effective_from.filter(|from| last.is_none_or(|last| *from > last)) {
        return point(from);
    }
    // Two changes within one tick of the clock.
    let next = last.map(|last| last.plus(Duration::from_micros(1)));
    point(next.map_or(now, |next| next.max(now)))
}

/// Every name of a model with its place in a body, each once.
fn names(model: &Model) -> Vec<(&str, Fault)> {
    let taken = "is a name of another model already";
    let mut names = vec![(model.slug.as_str(), Fault::path(Model::PARAMETER, taken))];
    let others = std::iter::once((model.model_id.as_str(), "/model_id".to_owned()));
    let aliases = model.aliases.iter().enumerate().map(|(index, name)| (name.as_str(), format!("/aliases/{index}")));
    for (name, place) in others.chain(aliases) {
        if names.iter().all(|(known, _)| *known != name) {
            names.push((name, Fault::new(place, taken)));
        }
    }
    names
}

impl Editing<'_> {
    async fn refuse_taken_names(&mut self, model: &Model) -> Result<(), EditError> {
        let names = names(model);
        let query = sqlx::query(
            "SELECT name FROM agent_directory.model_names
             WHERE organization_id = $1 AND name = ANY ($2) AND model_id <> $3",
        )
        .bind(self.organization())
        .bind(names.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>())
        .bind(model.id.0);
        let rows = self.all(query).await?;
        let taken: Vec<String> = rows.iter().map(|row| row.try_get("name")).collect::<Result<_, _>>()?;
        match names.into_iter().find(|(name, _)| taken.iter().any(|taken| taken == name)) {
            Some((_, fault)) => Err(Refusal::NameTaken(fault).into()),
            None => Ok(()),
        }
    }

    async fn write_model(&mut self, model: &Model) -> Result<(), StoreError> {
        let query = sqlx::query(
            "INSERT INTO agent_directory.models
                (organization_id, id, slug, provider, model_id, aliases, external_ref, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8)
             ON CONFLICT (organization_id, id) DO UPDATE SET provider = excluded.provider,
                model_id = excluded.model_id, aliases = excluded.aliases, external_ref = excluded.external_ref,
                updated_at = excluded.updated_at",
        )
        .bind(self.organization())
        .bind(model.id.0)
        .bind(model.slug.clone())
        .bind(model.provider.clone())
        .bind(model.model_id.clone())
        .bind(model.aliases.clone())
        .bind(model.external_ref.clone())
        .bind(self.instant());
        self.run(query).await?;
        Ok(())
    }

    async fn write_names(&mut self, model: &Model) -> Result<(), StoreError> {
        let names: Vec<String> = names(model).into_iter().map(|(name, _)| name.to_owned()).collect();
        let gone = sqlx::query(
            "DELETE FROM agent_directory.model_names
             WHERE organization_id = $1 AND model_id = $2 AND name <> ALL ($3)",
        )
        .bind(self.organization())
        .bind(model.id.0)
        .bind(names.clone());
        self.run(gone).await?;
        let new = sqlx::query(
            "INSERT INTO agent_directory.model_names (organization_id, name, model_id)
             SELECT $1, name, $2 FROM unnest($3::text[]) AS name ON CONFLICT DO NOTHING",
        )
        .bind(self.organization())
        .bind(model.id.0)
        .bind(names);
        self.run(new).await?;
        Ok(())
    }

    async fn write_prices(&mut self, model: ModelId, point: &PricePoint) -> Result<(), StoreError> {
        let prices = &point.prices;
        let query = sqlx::query(
            "INSERT INTO agent_directory.model_prices
                (organization_id, model_id, effective_from, input_cost_per_million, output_cost_per_million,
                 cache_read_cost_per_million, cache_write_cost_per_million)
             VALUES ($1, $2, $3, $4, $5, $6, $7)
             ON CONFLICT (organization_id, model_id, effective_from) DO UPDATE SET
                input_cost_per_million = excluded.input_cost_per_million,
                output_cost_per_million = excluded.output_cost_per_million,
                cache_read_cost_per_million = excluded.cache_read_cost_per_million,
                cache_write_cost_per_million = excluded.cache_write_cost_per_million",
        )
        .bind(self.organization())
        .bind(model.0)
        .bind(OffsetDateTime::from(point.effective_from))
        .bind(prices.input_cost_per_million.map(Price::decimal))
        .bind(prices.output_cost_per_million.map(Price::decimal))
        .bind(prices.cache_read_cost_per_million.map(Price::decimal))
        .bind(prices.cache_write_cost_per_million.map(Price::decimal));
        self.run(query).await?;
        Ok(())
    }
}
