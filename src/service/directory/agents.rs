//! Agents, each with its account.

use super::{Editor, WithSecret};
use crate::auth::secrets;
use crate::directory::records::{AgentDraft, AgentRecord, Key};
use crate::domain::command::Command;
use crate::domain::ids::AgentId;
use crate::domain::refusal::Refusal;
use crate::service::{Call, Service, ServiceError};
use crate::store::EditError;

/// How often a forced deletion closes the open tasks before it gives up. Once the agent is disabled only creations that
/// were under way can add any, so the second round finds none.
const CLOSING_ROUNDS_MAX: u32 = 10;

impl Service {
    /// Makes an agent with its account and first credential, or changes it.
    pub async fn put_agent(
        &self,
        editor: &Editor,
        key: &Key,
        draft: &AgentDraft,
    ) -> Result<WithSecret<AgentRecord>, ServiceError> {
        let secret = secrets::generate();
        let put = self.store.put_agent(self.edit(editor), key, draft, secret.hash()).await?;
        Ok(WithSecret::new(put, secret))
    }

    /// Removes an agent and its account. Its open tasks refuse that, or are closed first with `force`: disabled, so that
    /// no more are created, it has fewer with every round.
    pub async fn delete_agent(
        &self,
        call: &Call,
        editor: &Editor,
        agent: AgentId,
        force: bool,
    ) -> Result<(), ServiceError> {
        if !force {
            return Ok(self.store.delete_agent(self.edit(editor), agent).await?);
        }
        self.store.disable_agent(self.edit(editor), agent).await?;
        for _ in 0..CLOSING_ROUNDS_MAX {
            self.stop_agent(call, agent, Command::DeleteAgent).await?;
            match self.store.delete_agent(self.edit(editor), agent).await {
                Err(EditError::Refused(Refusal::OpenTasks(_))) => {}
                other => return Ok(other?),
            }
        }
        Err(ServiceError::Unavailable("tasks of the agent are created faster than they close".to_owned()))
    }
}
