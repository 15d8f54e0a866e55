//! The log store: one suite over every implementation of the port.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::missing_panics_doc, missing_docs)]
#![allow(clippy::assigning_clones, reason = "one allocation less is worth no line that is harder to read")]

mod away;
mod coverage;
#[path = "../api/support/database.rs"]
#[allow(dead_code)]
mod database;
mod operations;
mod reading;
mod refusal;
mod samples;
mod schema;
mod store;
mod time_zones;
mod usage;
mod versions;

/// One test per case and store, so that a failure names both.
macro_rules! suite {
    ($($room:ident: $($case:ident),+;)+) => {
        mod postgres {
            $($(#[tokio::test] async fn $case() { crate::store::on_postgres(false, crate::$room::$case).await; })+)+
        }
        mod postgres_behind_a_pooler {
            $($(#[tokio::test] async fn $case() { crate::store::on_postgres(true, crate::$room::$case).await; })+)+
        }
        mod clickhouse {
            $($(#[tokio::test] async fn $case() { crate::store::on_clickhouse(crate::$room::$case).await; })+)+
        }
    };
}

suite! {
    reading:
        what_was_written_is_read_back_to_the_byte,
        pages_go_both_ways,
        types_are_filtered_as_they_were_written,
        an_organization_reads_only_its_own,
        lists_say_what_is_there,
        rows_of_many_months_go_in_one_batch,
        an_empty_batch_and_an_empty_store_are_no_fault,
        migrating_again_changes_nothing;
    versions:
        duplicates_show_once,
        the_highest_version_counts_whenever_it_came,
        a_superseded_type_is_not_found;
    coverage:
        a_whole_log_is_seen_to_be_whole,
        what_is_missing_or_foreign_is_seen,
        many_tasks_are_covered_at_once;
    usage:
        sums_are_those_of_plain_arithmetic,
        sums_of_nothing_are_none,
        groups_are_cut_in_the_order_of_their_keys,
        bounds_of_time_are_to_the_microsecond,
        amounts_at_their_limits_add_up,
        the_newest_name_is_shown;
    operations:
        resolutions_and_outcomes_are_listed_the_newest_first,
        pages_lose_and_repeat_nothing,
        filters_hold,
        a_resolution_with_numbers_beyond_any_machine_is_found;
    refusal:
        a_refused_row_is_set_apart_and_all_else_kept;
}
