//! A ledger that is longer than what is read of it at once.

use mandate::log::Batch;

use crate::combination::{Place, archived, landed};
use crate::duplicates::stored;
use crate::over_every_combination;

over_every_combination!(every_part_of_a_long_ledger_is_compared_and_mended);

/// Of 500 rows.
const REPORTS: usize = 1_010;

async fn every_part_of_a_long_ledger_is_compared_and_mended(place: Place) {
    let world = place.world_with(|settings| settings.archive.grace_seconds = 900).await;
    let (agent, vera) = (world.agent().await, world.person("vera"));
    let (task, _) = world.working(&agent).await;
    for nth in 0..REPORTS {
        agent.spend(&task, &format!("r{nth}"), 7, 3).await.expect(201);
    }
    agent.finish(&task).await.expect(200);
    landed(&world, &task).await;
    let row = world.person("ada").get(&format!("/agent-tasks/{task}")).await.expect(200).clone();
    let used = vera.get("/agent-usage").await.expect(200)["total"].clone();
    let (_, mut usage) = stored(&world, &row).await;
    usage.sort_by_key(|row| row.report_id);
    assert_eq!(usage.len(), REPORTS);
    // One of each part is lost.
    let lost = [3, 700, REPORTS - 1].map(|nth| format!("'{}'", usage[nth].report_id)).join(", ");
    place.in_store(&world, &format!("DELETE FROM {{usage}} WHERE report_id IN ({lost})")).await;
    world.skew_clock(2);
    let swept = world.sweep().await;
    assert_eq!((swept.republished, swept.mismatched), (3, 0), "{swept:?}");
    landed(&world, &task).await;
    // One of the last part is altered.
    let mut altered = usage[REPORTS - 2].clone();
    altered.tokens.tokens_out += 1;
    altered.version = 9;
    world.log.store.append(&Batch { events: Vec::new(), usage: vec![altered] }).await.unwrap();
    world.skew_clock(902);
    let swept = world.sweep().await;
    assert_eq!((swept.archived, swept.mismatched), (0, 1), "{swept:?}");
    archived(&world, &task).await;
    assert_eq!(vera.get("/agent-usage").await.expect(200)["total"], used);
    let (_, usage) = stored(&world, &row).await;
    // Written anew, all of it.
    assert_eq!(usage.iter().filter(|row| row.version == 10).count(), REPORTS);
    world.prove().await;
}
