//! Outcomes and their reasons: closed sets.

use super::names::names;

names! {
    /// How a task ended.
    Outcome, OutcomeError: "outcome" {
        /// The agent acted.
        DoneActed = "done_acted",
        /// There was nothing to act on.
        DoneNothingToActOn = "done_nothing_to_act_on",
        /// There was no reason to run.
        NoReasonToRun = "no_reason_to_run",
        /// A cap ended the work before it was complete.
        PartialCapped = "partial_capped",
        /// Another task does the same.
        SuppressedDuplicate = "suppressed_duplicate",
        /// A newer task or trigger took its place.
        Superseded = "superseded",
        /// A person cancelled it.
        CancelledByHuman = "cancelled_by_human",
        /// An operator interrupted it.
        InterruptedByOperator = "interrupted_by_operator",
        /// A gate refused its effect.
        FailedAtGate = "failed_at_gate",
        /// Something outside failed.
        FailedExternal = "failed_external",
        /// Its subject is not known.
        UnmappedSubject = "unmapped_subject",
        /// A ceiling was exceeded.
        ExceededCeiling = "exceeded_ceiling",
        /// Nobody can work it.
        UnhandledNoActor = "unhandled_no_actor",
        /// A request to a person expired.
        RequestExpired = "request_expired",
        /// A rate ceiling refused it.
        RefusedRateCeiling = "refused_rate_ceiling",
    }
}

names! {
    /// Why a task ended so. Each reason belongs to exactly one outcome.
    OutcomeReason, OutcomeReasonError: "outcome reason" {
        /// The wanted state was there already.
        AlreadySatisfied = "already_satisfied",
        /// Nothing was found.
        NoFindings = "no_findings",
        /// The condition went away.
        ConditionCleared = "condition_cleared",
        /// A precondition does not hold.
        PreconditionNotMet = "precondition_not_met",
        /// The subject is gone.
        SubjectGone = "subject_gone",
        /// A policy disables it.
        DisabledByPolicy = "disabled_by_policy",
        /// The cap on turns.
        TurnCap = "turn_cap",
        /// The cap on time.
        TimeCap = "time_cap",
        /// The cap on scope.
        ScopeCap = "scope_cap",
        /// The cap on tool calls.
        ToolCap = "tool_cap",
        /// An open task has the same subject.
        SameSubjectOpen = "same_subject_open",
        /// A recent task had the same subject.
        SameSubjectRecent = "same_subject_recent",
        /// The same trigger fired already.
        SameTrigger = "same_trigger",
        /// A newer task.
        NewerTask = "newer_task",
        /// A newer trigger.
        NewerTrigger = "newer_trigger",
        /// An operator replaced it.
        ReplacedByOperator = "replaced_by_operator",
        /// The harness saw the cancel, or closed its last session under it.
        CancelSeen = "cancel_seen",
        /// No session was open when the cancel came.
        CancelledWithoutSession = "cancelled_without_session",
        /// The last session of a cancelled task was lost.
        HarnessLost = "harness_lost",
        /// The harness drains.
        HarnessDrain = "harness_drain",
        /// A deployment.
        Deploy = "deploy",
        /// A second, forced cancel that no harness confirmed.
        ForcedUnconfirmed = "forced_unconfirmed",
        /// Every open task of the agent was stopped.
        EmergencyStop = "emergency_stop",
        /// An approval was rejected.
        ApprovalRejected = "approval_rejected",
        /// A check failed.
        CheckFailed = "check_failed",
        /// A policy denied it.
        PolicyDenied = "policy_denied",
        /// A capability is missing.
        CapabilityMissing = "capability_missing",
        /// It tried to write where it may only read.
        ReadOnlyViolation = "read_only_violation",
        /// A dependency is away.
        DependencyUnavailable = "dependency_unavailable",
        /// The model's provider failed.
        ProviderError = "provider_error",
        /// A tool failed.
        ToolError = "tool_error",
        /// Credentials were rejected.
        CredentialsRejected = "credentials_rejected",
        /// The harness failed.
        InternalError = "internal_error",
        /// No project for the subject.
        NoProject = "no_project",
        /// No repository for the subject.
        NoRepository = "no_repository",
        /// The subject is unknown.
        UnknownSubject = "unknown_subject",
        /// The budget.
        Budget = "budget",
        /// The task's time limit.
        TaskTimeout = "task_timeout",
        /// The harness's limit on turns.
        TurnLimit = "turn_limit",
        /// The harness's limit on tokens.
        TokenLimit = "token_limit",
        /// No harness works for the agent.
        NoHarness = "no_harness",
        /// The agent is disabled.
        AgentDisabled = "agent_disabled",
        /// The agent was deleted.
        AgentDeleted = "agent_deleted",
        /// Nobody owns it.
        NoOwner = "no_owner",
        /// A feedback request expired.
        FeedbackExpired = "feedback_expired",
        /// An approval request expired.
        ApprovalExpired = "approval_expired",
        /// The organization's rate.
        OrgRate = "org_rate",
        /// The agent's rate.
        AgentRate = "agent_rate",
        /// The trigger's rate.
        TriggerRate = "trigger_rate",
    }
}

impl OutcomeReason {
    /// Whether only the server may give this reason.
    pub fn is_reserved(self) -> bool {
        matches!(
            self,
            Self::CancelledWithoutSession
                | Self::HarnessLost
                | Self::ForcedUnconfirmed
                | Self::EmergencyStop
                | Self::Budget
                | Self::TaskTimeout
                | Self::AgentDeleted
                | Self::FeedbackExpired
                | Self::ApprovalExpired
        )
    }
}

impl Outcome {
    /// The reasons of this outcome; none for `done_acted`, at least one for every other.
    pub fn reasons(self) -> &'static [OutcomeReason] {
        use OutcomeReason as R;
        match self {
            Self::DoneActed => &[],
            Self::DoneNothingToActOn => &[R::AlreadySatisfied, R::NoFindings, R::ConditionCleared],
            Self::NoReasonToRun => &[R::PreconditionNotMet, R::SubjectGone, R::DisabledByPolicy],
            Self::PartialCapped => &[R::TurnCap, R::TimeCap, R::ScopeCap, R::ToolCap],
            Self::SuppressedDuplicate => &[R::SameSubjectOpen, R::SameSubjectRecent, R::SameTrigger],
            Self::Superseded => &[R::NewerTask, R::NewerTrigger, R::ReplacedByOperator],
            Self::CancelledByHuman => &[R::CancelSeen, R::CancelledWithoutSession, R::HarnessLost],
            Self::InterruptedByOperator => &[R::HarnessDrain, R::Deploy, R::ForcedUnconfirmed, R::EmergencyStop],
            Self::FailedAtGate => {
                &[R::ApprovalRejected, R::CheckFailed, R::PolicyDenied, R::CapabilityMissing, R::ReadOnlyViolation]
            }
            Self::FailedExternal => {
                &[R::DependencyUnavailable, R::ProviderError, R::ToolError, R::CredentialsRejected, R::InternalError]
            }
            Self::UnmappedSubject => &[R::NoProject, R::NoRepository, R::UnknownSubject],
            Self::ExceededCeiling => &[R::Budget, R::TaskTimeout, R::TurnLimit, R::TokenLimit],
            Self::UnhandledNoActor => &[R::NoHarness, R::AgentDisabled, R::AgentDeleted, R::NoOwner],
            Self::RequestExpired => &[R::FeedbackExpired, R::ApprovalExpired],
            Self::RefusedRateCeiling => &[R::OrgRate, R::AgentRate, R::TriggerRate],
        }
    }
}

/// An outcome with a reason that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    outcome: Outcome,
    reason: Option<OutcomeReason>,
}

impl Ending {
    /// Pairs an outcome with its reason; `None` when the two do not belong together.
    pub fn new(outcome: Outcome, reason: Option<OutcomeReason>) -> Option<Self> {
        let fits = match reason {
            None => outcome.reasons().is_empty(),
            Some(reason) => outcome.reasons().contains(&reason),
        };
        fits.then_some(Self { outcome, reason })
    }

    /// An ending whose reason names its outcome.
    pub fn because(reason: OutcomeReason) -> Self {
        let owner = Outcome::ALL.iter().copied().find(|outcome| outcome.reasons().contains(&reason));
        // Every reason belongs to one outcome; the test below holds that.
        Self { outcome: owner.unwrap_or(Outcome::FailedExternal), reason: Some(reason) }
    }

    /// The outcome.
    pub fn outcome(self) -> Outcome {
        self.outcome
    }

    /// The reason, absent exactly for `done_acted`.
    pub fn reason(self) -> Option<OutcomeReason> {
        self.reason
    }

    /// Whether only the server may set it.
    pub fn is_reserved(self) -> bool {
        self.reason.is_some_and(OutcomeReason::is_reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_belongs_to_exactly_one_outcome() {
        for reason in OutcomeReason::ALL {
            let owners = Outcome::ALL.iter().filter(|outcome| outcome.reasons().contains(reason)).count();
            assert_eq!(owners, 1, "{reason}");
            assert_eq!(Ending::because(*reason).reason(), Some(*reason));
        }
    }

    #[test]
    fn what_only_the_server_may_say_is_reserved() {
        use OutcomeReason as R;
        let reserved = [
            R::CancelledWithoutSession,
            R::HarnessLost,
            R::ForcedUnconfirmed,
            R::EmergencyStop,
            R::Budget,
            R::TaskTimeout,
            R::AgentDeleted,
            R::FeedbackExpired,
            R::ApprovalExpired,
        ];
        for reason in OutcomeReason::ALL {
            assert_eq!(reason.is_reserved(), reserved.contains(reason), "{reason}");
            assert_eq!(Ending::because(*reason).is_reserved(), reserved.contains(reason), "{reason}");
        }
        assert!(!Ending::new(Outcome::DoneActed, None).unwrap().is_reserved());
    }

    #[test]
    fn only_done_acted_goes_without_a_reason() {
        for outcome in Outcome::ALL {
            assert_eq!(Ending::new(*outcome, None).is_some(), *outcome == Outcome::DoneActed, "{outcome}");
            for reason in OutcomeReason::ALL {
                assert_eq!(Ending::new(*outcome, Some(*reason)).is_some(), outcome.reasons().contains(reason));
            }
        }
    }
}
