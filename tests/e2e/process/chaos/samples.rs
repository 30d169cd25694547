//! Samples of a process under load: resident memory and open descriptors, and their trend over a run.

/// The permitted growth of memory over the measured part of a run, by the fitted line, in hundredths of the mean.
pub(super) const MEMORY_GROWTH_MAX: f64 = 10.0;

/// The permitted growth of descriptors over the measured part of a run, by the fitted line.
pub(super) const DESCRIPTORS_GROWTH_MAX: f64 = 8.0;

/// A reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Bytes of resident memory.
    pub(super) resident: u64,
    /// Open file descriptors.
    pub(super) descriptors: u64,
}

impl Sample {
    pub(super) fn of(pid: u32) -> Sample {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib = kib.expect("a process has memory").trim();
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process of ours");
        Sample {
            resident: kib.parse::<u64>().expect("a number") << 10,
            descriptors: files.count() as u64,
        }
    }
}

/// The growth of a value over a run: the growth of the least-squares line from the first to the last reading.
///
/// The line is over every reading, instead of a difference of two readings: single readings vary with the requests under way.
pub(super) fn growth(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let middle = (count - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / count;
    let (mut above, mut below) = (0.0, 0.0);
    for (at, value) in values.iter().enumerate() {
        let from_middle = at as f64 - middle;
        above += from_middle * (value - mean);
        below += from_middle * from_middle;
    }
    if below == 0.0 {
        0.0
    } else {
        above / below * (count - 1.0)
    }
}

/// The growth over the second half of the samples: memory in hundredths of the mean, and descriptors. In the first half the cache fills,
/// and a client opens up to six connections.
pub(super) fn trends(samples: &[Sample]) -> (f64, f64) {
    let measured = &samples[samples.len() / 2..];
    let memory: Vec<f64> = measured.iter().map(|one| one.resident as f64).collect();
    let descriptors: Vec<f64> = measured.iter().map(|one| one.descriptors as f64).collect();
    let mean = memory.iter().sum::<f64>() / memory.len() as f64;
    (growth(&memory) * 100.0 / mean, growth(&descriptors))
}

#[test]
fn a_leak_is_a_trend_and_a_varying_value_is_none() {
    let run = |resident: fn(u64) -> u64, descriptors: fn(u64) -> u64| {
        let samples = (0..60).map(|at| Sample {
            resident: resident(at),
            descriptors: descriptors(at),
        });
        trends(&samples.collect::<Vec<_>>())
    };
    // Full after a fifth, and between some values afterwards.
    let (memory, descriptors) = run(|at| 1000 * at.min(12) + at % 2 * 500, |at| 100 + at % 3 * 9);
    assert!(memory.abs() < MEMORY_GROWTH_MAX, "{memory}");
    assert!(descriptors.abs() < DESCRIPTORS_GROWTH_MAX, "{descriptors}");
    // A hundredth of the start per sample, and a descriptor per second sample.
    let (memory, descriptors) = run(|at| 10_000 + at * 100, |at| 100 + at / 2);
    assert!(memory > MEMORY_GROWTH_MAX, "{memory}");
    assert!(descriptors > DESCRIPTORS_GROWTH_MAX, "{descriptors}");
}
