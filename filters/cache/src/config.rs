//! The settings of `[cache]`, as written and as checked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{At, Problems, Switch, Whole, Word, Words};
use tollgate_filter::{MemoryLimit, RateClasses, UncachedModels};
use tollgate_module::{Section, SectionContext, Services, check_text};

/// `[cache]` exactly as written.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawCache {
    /// Whether the cache and single flight are enabled.
    pub enabled: Switch<true>,
    /// Memory for all entries; the least used are evicted first.
    pub max_bytes: Whole<268_435_456, 1_048_576, 1_099_511_627_776>,
    /// Maximum size of an entry.
    ///
    /// Default: 262144, at most a sixteenth of `max_bytes`
    /// Range: 1024 to a sixteenth of `max_bytes`
    pub max_entry_bytes: Option<At<u64>>,
    /// Time to live of an entry.
    pub ttl_secs: Whole<86_400, 1, 31_536_000>,
    /// How long a request waits for the response to an equal one in progress, before it calls the provider itself.
    pub wait_secs: Whole<30, 1, 30>,
    /// Which accounts share entries, see below.
    pub partition: Word<Sharing>,
    /// Accounts of classes with the same salt share; accounts of a class without a salt do not share.
    ///
    /// Type: table of texts, by rate class
    /// Range: with `keyed` only
    pub salts: BTreeMap<String, At<String>>,
    /// The price of a hit, as a fraction of the normal price.
    pub hit_price_ppm: Whole<0, 0, 1_000_000>,
}

/// Who shares stored answers, as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Every account.
    #[default]
    None,
    /// No sharing between accounts.
    Account,
    /// Accounts whose rate classes have an equal salt.
    Keyed,
}

impl Words for Sharing {
    const WORDS: &'static [(&'static str, Sharing)] = &[
        ("none", Sharing::None),
        ("account", Sharing::Account),
        ("keyed", Sharing::Keyed),
    ];
}

/// Who shares stored answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partition {
    /// Every account.
    None,
    /// No sharing between accounts.
    Account,
    /// Accounts whose rate classes have an equal salt: class and salt.
    Keyed(Arc<[(Box<str>, Box<str>)]>),
}

/// The default size.
const DEFAULT_BYTES: usize = 256 << 20;

/// The part of the memory limit that the default size may have.
const MEMORY_DIVISOR: u64 = 8;

impl CacheSettings {
    /// The size in a process with this memory limit. The default size is reduced under a small limit. A size other than the default is the
    /// operator's decision.
    pub(crate) fn bytes_within(&self, memory: Option<MemoryLimit>) -> usize {
        let Some(MemoryLimit(limit)) = memory else {
            return self.bytes_max;
        };
        let most = usize::try_from(limit / MEMORY_DIVISOR).unwrap_or(usize::MAX);
        match self.bytes_max {
            DEFAULT_BYTES => DEFAULT_BYTES.min(most.max(self.entry_bytes_max)),
            written => written,
        }
    }
}

/// Checked settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Whether answers are stored and replayed.
    pub enabled: bool,
    /// Bytes of memory for the entries together.
    pub bytes_max: usize,
    /// Bytes of the largest stored answer.
    pub entry_bytes_max: usize,
    /// How long an answer is replayed.
    pub ttl: Duration,
    /// How long a request waits for the answer to an equal request.
    pub wait: Duration,
    /// Who shares stored answers.
    pub partition: Partition,
    /// The price of a hit in millionths of the normal price.
    pub hit_price_ppm: u32,
    /// Models whose answers are never stored (`cache = false` in their section).
    pub uncached: UncachedModels,
}

/// For a value of `max_bytes` out of its range.
const BYTES_MAX: u64 = 256 << 20;
const ENTRY_BYTES_MAX: u64 = 256 << 10;

impl Default for CacheSettings {
    fn default() -> CacheSettings {
        check_text::<RawCache>("", &Services::default()).expect("the defaults pass their own check")
    }
}

impl Section for RawCache {
    const NAME: &'static str = "cache";
    type Settings = CacheSettings;

    fn check(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<CacheSettings> {
        let key = |name: &str| context.key(name);
        self.check_classes(context, problems);
        let bytes = self.max_bytes.check(key("max_bytes"), problems);
        let largest = bytes.unwrap_or(BYTES_MAX) / 16;
        let entry = match &self.max_entry_bytes {
            Some(at) => problems.within(key("max_entry_bytes"), at, 1024..=largest),
            None => Some(ENTRY_BYTES_MAX.min(largest)),
        };
        let ttl = self.ttl_secs.check(key("ttl_secs"), problems);
        let wait = self.wait_secs.check(key("wait_secs"), problems);
        let price = self.hit_price_ppm.check(key("hit_price_ppm"), problems);
        let partition = self.partition(context, problems);
        Some(CacheSettings {
            enabled: self.enabled.is_on(),
            bytes_max: usize::try_from(bytes?).ok()?,
            entry_bytes_max: usize::try_from(entry?).ok()?,
            ttl: Duration::from_secs(ttl?),
            wait: Duration::from_secs(wait?),
            partition: partition?,
            hit_price_ppm: u32::try_from(price?).ok()?,
            uncached: context.find().unwrap_or_default(),
        })
    }
}

impl RawCache {
    /// Salts must name existing classes.
    fn check_classes(&self, context: &SectionContext<'_>, problems: &mut Problems) {
        let Some(RateClasses(known)) = context.find() else {
            return;
        };
        for (class, at) in &self.salts {
            if !known.iter().any(|known| *known.name == **class) {
                let message = "is not a rate class; use the name of a class of `limits.classes`";
                problems.note(context.key(&format!("salts.{class}")), at, message);
            }
        }
    }

    fn partition(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<Partition> {
        let key = context.key("partition");
        let partition = match self.partition.check(&key, problems)? {
            Sharing::None => Partition::None,
            Sharing::Account => Partition::Account,
            Sharing::Keyed => {
                if self.salts.is_empty()
                    && let Some(at) = self.partition.written()
                {
                    let message =
                        "is `keyed`, and `salts` is empty; give each rate class that shares a salt";
                    problems.note(key, at, message);
                    return None;
                }
                let salts = self.salts.iter();
                let salts =
                    salts.map(|(class, at)| (class.as_str().into(), at.value.as_str().into()));
                return Some(Partition::Keyed(salts.collect()));
            }
        };
        for (class, at) in &self.salts {
            let message =
                "has no effect without `partition = \"keyed\"`; remove it, or set the partition";
            problems.note(context.key(&format!("salts.{class}")), at, message);
        }
        Some(partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_size_fits_into_the_memory_of_the_process() {
        for (bytes_max, memory, expected) in [
            (256 << 20, 4 << 30, 256 << 20),
            (256 << 20, 1 << 30, 128 << 20),
            (255 << 20, 1 << 30, 255 << 20),
        ] {
            let settings = CacheSettings {
                bytes_max,
                ..CacheSettings::default()
            };
            let limit = Some(MemoryLimit(memory));
            assert_eq!(settings.bytes_within(limit), expected);
        }
    }

    #[test]
    fn an_empty_section_means_the_defaults() {
        assert_eq!(
            check(""),
            Ok(CacheSettings {
                enabled: true,
                bytes_max: 256 << 20,
                entry_bytes_max: 256 << 10,
                ttl: Duration::from_secs(86_400),
                wait: Duration::from_secs(30),
                partition: Partition::None,
                hit_price_ppm: 0,
                uncached: UncachedModels::default(),
            })
        );
    }

    #[test]
    fn every_setting_is_read() {
        let settings = check(
            r#"
            enabled = false
            max_bytes = 1048576
            max_entry_bytes = 65536
            ttl_secs = 1
            wait_secs = 5
            partition = "keyed"
            salts = { free = "a", pro = "b" }
            hit_price_ppm = 100000
            "#,
        );
        let pair = |class: &str, salt: &str| (Box::from(class), Box::from(salt));
        assert_eq!(
            settings,
            Ok(CacheSettings {
                enabled: false,
                bytes_max: 1 << 20,
                entry_bytes_max: 1 << 16,
                ttl: Duration::from_secs(1),
                wait: Duration::from_secs(5),
                partition: Partition::Keyed(Arc::from([pair("free", "a"), pair("pro", "b")])),
                hit_price_ppm: 100_000,
                uncached: UncachedModels::default(),
            })
        );
    }

    #[test]
    fn a_small_cache_has_a_smaller_entry_limit() {
        let settings = check("max_bytes = 1048576").expect("good settings");
        assert_eq!(settings.entry_bytes_max, 1 << 16);
    }

    #[test]
    fn everything_wrong_is_reported_at_once() {
        let keys = |text| check(text).expect_err("problems");
        let text = "max_bytes = 1\nmax_entry_bytes = 1\nttl_secs = 0\nwait_secs = 31\nhit_price_ppm = 1000001\npartition = \"all\"";
        assert_eq!(
            keys(text),
            [
                "max_bytes",
                "max_entry_bytes",
                "ttl_secs",
                "wait_secs",
                "hit_price_ppm",
                "partition"
            ]
            .map(|name| format!("cache.{name}"))
        );
        assert_eq!(
            keys("max_bytes = 1048576\nmax_entry_bytes = 65537"),
            ["cache.max_entry_bytes"]
        );
        assert_eq!(keys("partition = \"keyed\""), ["cache.partition"]);
        assert_eq!(keys("salts = { free = \"a\" }"), ["cache.salts.free"]);
    }

    fn check(text: &str) -> Result<CacheSettings, Vec<String>> {
        check_text::<RawCache>(text, &Services::default())
            .map_err(|found| found.into_iter().map(|problem| problem.key).collect())
    }
}
