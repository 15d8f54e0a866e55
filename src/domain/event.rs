//! The envelope of a log entry.

use super::names::names;

names! {
    /// The way by which an event reached the log.
    Channel, ChannelError: "channel" {
        /// A web interface.
        Web = "web",
        /// A Slack conversation.
        Slack = "slack",
        /// An MCP client.
        Mcp = "mcp",
        /// The REST API itself.
        Api = "api",
        /// A harness.
        Harness = "harness",
    }
}

names! {
    /// What kind of actor caused an event.
    ActorKind, ActorKindError: "actor kind" {
        /// A person.
        Human = "human",
        /// The task's agent.
        Agent = "agent",
        /// A helper of the agent, within the same task.
        Subagent = "subagent",
        /// The server itself, or a trigger.
        System = "system",
    }
}
