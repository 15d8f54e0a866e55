//! How long `mandate serve` takes to be ready on a migrated database.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::calls::get;
use super::load::answer;
use super::report::{Section, Spread};
use super::seed::people;
use super::service::{self, Service};
use super::{Arguments, Failure};

/// Starts.
const STARTS: usize = 10;
/// Starts of a quick run.
const QUICK: usize = 2;
/// How often it is asked whether it is ready.
const AGAIN: Duration = Duration::from_millis(2);
/// How long it may take.
const LONGEST: Duration = Duration::from_secs(30);

/// Measures it: all roles and settings as by default, from the moment before the process is made to the answer 200.
pub async fn measure(arguments: &Arguments) -> Result<(Section, u32), Failure> {
    let folder = service::folder()?;
    let postgres = service::start_postgres(folder.path()).await?;
    postgres.ensure_database("mandate").await?;
    let (_, issuers) = people(&folder.path().join("people.json"))?;
    let settings = service::settings(folder.path(), &postgres.url("mandate"), &issuers);
    let http = reqwest::Client::builder().no_proxy().build()?;
    // Migrates, and makes its key.
    Service::start(folder.path(), "mandate", &settings, &http).await?.kill().await?;

    let mut micros = Vec::new();
    for _ in 0..if arguments.quick { QUICK } else { STARTS } {
        let address = service::free_address()?;
        let ask = get(address, "/readyz", "");
        let mut command = service::command(folder.path(), &settings);
        command.arg("serve").env("MANDATE_SERVER__LISTEN", address.to_string()).stderr(std::process::Stdio::null());
        let begin = Instant::now();
        let mut child = command.spawn()?;
        loop {
            if let Ok(mut stream) = TcpStream::connect(address).await {
                stream.write_all(&ask).await?;
                if answer(&mut stream, &mut Vec::new()).await? == 200 {
                    break;
                }
            }
            if begin.elapsed() > LONGEST || child.try_wait()?.is_some() {
                return Err("Mandate did not get ready".into());
            }
            sleep(AGAIN).await;
        }
        micros.push(i64::try_from(begin.elapsed().as_micros())?);
        child.kill().await?;
    }
    let version = postgres.programs().major;
    postgres.stop().await?;
    let (count, spread) = (micros.len(), Spread::from(micros));
    let [median, _, longest] = spread.fine_cells();
    let section = Section {
        name: "start",
        title: "From the start of `mandate serve` on a migrated database to /readyz, in ms (promised: below 1,000)"
            .to_owned(),
        head: vec!["starts", "median", "max"],
        rows: vec![vec![count.to_string(), median, longest]],
        json: json!({"starts": spread.json()}),
    };
    Ok((section, version))
}
