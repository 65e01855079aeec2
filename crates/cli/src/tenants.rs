//! `--tenants FILE`: who may use a server, with which keys, and how much.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use forerun_serve::{Priority, TenantConfig, TenantLimits};

/// Most tenants: each is a label of every metric of tenants.
const TENANTS_MAX: usize = 1024;

/// Most characters of a name, which metrics and logs repeat.
const NAME_MAX: usize = 64;

/// The largest weight.
const WEIGHT_MAX: u32 = 1000;

/// The tenants of a file.
#[derive(Debug)]
pub(crate) struct Tenants {
    pub(crate) tenants: Vec<TenantConfig>,
    /// The key that shows their metrics.
    pub(crate) metrics_key: Option<String>,
}

/// The file as it is written.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TenantsFile {
    metrics_key: Option<String>,
    #[serde(default)]
    tenant: BTreeMap<String, TenantTable>,
}

/// A tenant as it is written.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TenantTable {
    keys: Vec<String>,
    weight: Option<NonZeroU32>,
    #[serde(default)]
    priority: PriorityName,
    requests_per_minute: Option<NonZeroU32>,
    tokens_per_minute: Option<NonZeroU32>,
    sequences: Option<NonZeroU32>,
    cache: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PriorityName {
    High,
    #[default]
    Normal,
    Low,
}

impl From<PriorityName> for Priority {
    fn from(name: PriorityName) -> Self {
        match name {
            PriorityName::High => Self::High,
            PriorityName::Normal => Self::Normal,
            PriorityName::Low => Self::Low,
        }
    }
}

/// Reads a file. Its keys may not be among these.
///
/// # Errors
/// If it cannot be read, or what it says cannot be meant.
pub(crate) fn read(path: &Path, keys: &[String]) -> anyhow::Result<Tenants> {
    let parse = || -> anyhow::Result<Tenants> {
        let file: TenantsFile = toml::from_str(&std::fs::read_to_string(path)?)?;
        check(file, keys)
    };
    parse().with_context(|| format!("tenants {}", path.display()))
}

fn check(file: TenantsFile, keys: &[String]) -> anyhow::Result<Tenants> {
    let count = file.tenant.len();
    ensure!(count > 0, "there is no tenant: add [tenant.NAME] with keys = [\"…\"]");
    ensure!(count <= TENANTS_MAX, "there are {count} tenants; expected at most {TENANTS_MAX}");
    let mut known: BTreeSet<&str> = keys.iter().map(String::as_str).collect();
    if let Some(key) = &file.metrics_key {
        ensure!(is_key(key), "metrics-key is empty or has spaces around it: give a key");
        ensure!(known.insert(key), "metrics-key is also a key of --api-key: give another");
    }
    for (name, table) in &file.tenant {
        check_name(name)?;
        ensure!(!table.keys.is_empty(), "tenant {name} has no key: add keys = [\"…\"]");
        for key in &table.keys {
            ensure!(is_key(key), "a key of tenant {name} is empty or has spaces around it");
            // The key itself is a secret, which an error is not.
            ensure!(known.insert(key), "a key of tenant {name} is given twice: each needs its own");
        }
        if let Some(weight) = table.weight.filter(|weight| weight.get() > WEIGHT_MAX) {
            bail!("the weight of tenant {name} is {weight}; expected 1 to {WEIGHT_MAX}");
        }
    }
    let tenants = file.tenant.into_iter().map(|(name, table)| TenantConfig {
        name: Some(name),
        keys: table.keys,
        weight: table.weight.unwrap_or(NonZeroU32::MIN),
        priority: table.priority.into(),
        limits: TenantLimits {
            requests_per_minute: table.requests_per_minute,
            tokens_per_minute: table.tokens_per_minute,
            sequences: table.sequences,
        },
        cache: table.cache,
    });
    Ok(Tenants { tenants: tenants.collect(), metrics_key: file.metrics_key })
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.trim() == key
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let plain = |it: char| it.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&it);
    if (1..=NAME_MAX).contains(&name.len()) && name.chars().all(plain) {
        return Ok(());
    }
    bail!("{name:?} is no name of a tenant; expected 1 to {NAME_MAX} letters, digits, - _ or .")
}

#[cfg(test)]
#[path = "../tests/line/tenants.rs"]
mod tests;
