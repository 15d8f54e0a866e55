//! What the system says of processes.

use super::Failure;

/// Clock ticks of `/proc/PID/stat` in a second, on every Linux that this runs on.
const TICKS: f64 = 100.0;
/// Files that a process opens besides its clients' connections, at most.
const OTHER_FILES: usize = 200;

/// The fields of a process after its name, from its state on.
fn stat(pid: u32) -> Result<Vec<u64>, Failure> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = text.rsplit_once(") ").ok_or("a process without a name")?;
    Ok(rest.split_ascii_whitespace().map(|field| field.parse().unwrap_or_default()).collect())
}

/// CPU seconds of a process so far.
pub fn cpu_seconds(pid: u32) -> Result<f64, Failure> {
    let ticks: u64 = stat(pid)?.iter().skip(11).take(2).sum();
    Ok(f64::from(u32::try_from(ticks)?) / TICKS)
}

/// Of a process and its children.
pub fn family_cpu_seconds(pid: u32) -> Result<f64, Failure> {
    let mut sum = cpu_seconds(pid)?;
    for entry in std::fs::read_dir("/proc")? {
        let Some(child) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that has just ended is not there any more.
        if stat(child).is_ok_and(|fields| fields.get(1) == Some(&u64::from(pid))) {
            sum += cpu_seconds(child).unwrap_or_default();
        }
    }
    Ok(sum)
}

/// Megabytes of a process that are in memory: now, and at most so far.
pub fn resident(pid: u32) -> Result<(f64, f64), Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let figure = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        let kilobytes: u32 = line.ok_or_else(|| format!("a process without {name}"))?.parse()?;
        Ok::<_, Failure>(f64::from(kilobytes) * 1024.0 / 1e6)
    };
    Ok((figure("VmRSS:")?, figure("VmHWM:")?))
}

/// Refuses to begin where so many connections, on either side, do not fit into what a process may open.
pub fn require_files(connections: usize) -> Result<(), Failure> {
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next());
    let needed = connections + OTHER_FILES;
    match soft.and_then(|soft| soft.parse::<usize>().ok()) {
        Some(soft) if soft < needed => {
            Err(format!("a process may open {soft} files and needs {needed} here: `ulimit -n {needed}` first").into())
        }
        _ => Ok(()),
    }
}
