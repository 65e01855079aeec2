//! What files of `--tenants` mean.

use super::*;

fn parsed(text: &str) -> Result<Tenants, String> {
    let file = toml::from_str(text).map_err(|error| error.to_string())?;
    check(file, &["said".to_owned()]).map_err(|error| error.to_string())
}

#[track_caller]
fn refused(text: &str, reason: &str) {
    let error = parsed(text).unwrap_err();
    assert!(error.contains(reason), "{error}");
    assert!(!error.contains("secret"), "an error tells a key: {error}");
}

#[test]
fn a_file_says_who_may_do_what() {
    let text = r#"
        metrics-key = "m"
        [tenant.batch]
        keys = ["b"]
        priority = "low"
        cache = "team"
        [tenant.alice]
        keys = ["a", "a2"]
        weight = 3
        requests-per-minute = 60
        tokens-per-minute = 20000
        sequences = 8
    "#;
    let Tenants { tenants, metrics_key } = parsed(text).unwrap();
    assert_eq!(metrics_key.as_deref(), Some("m"));
    let [alice, batch] = &tenants[..] else { panic!("{tenants:?}") };
    assert_eq!((alice.name.as_deref(), alice.keys.len()), (Some("alice"), 2));
    assert_eq!((alice.weight.get(), alice.priority), (3, Priority::Normal));
    let limit = NonZeroU32::new;
    let limits = TenantLimits {
        requests_per_minute: limit(60),
        tokens_per_minute: limit(20_000),
        sequences: limit(8),
    };
    assert_eq!(alice.limits, limits);
    assert_eq!((batch.priority, batch.cache.as_deref()), (Priority::Low, Some("team")));
    assert_eq!((batch.weight.get(), batch.limits), (1, TenantLimits::default()));
}

#[test]
fn what_cannot_be_meant_is_refused_without_telling_a_key() {
    refused("", "there is no tenant");
    refused("[tenant.a]\nkeys = []", "tenant a has no key");
    refused("[tenant.a]\nkeys = [\"\"]", "a key of tenant a is empty");
    refused("[tenant.a]\nkeys = [\" secret\"]", "spaces around it");
    refused("[tenant.a]\nkeys = [\"secret\"]\n[tenant.b]\nkeys = [\"secret\"]", "given twice");
    refused("[tenant.a]\nkeys = [\"said\"]", "a key of tenant a is given twice");
    refused("metrics-key = \"secret\"\n[tenant.a]\nkeys = [\"secret\"]", "given twice");
    refused("metrics-key = \"said\"\n[tenant.a]\nkeys = [\"x\"]", "metrics-key is also a key");
    refused("[tenant.\"a b\"]\nkeys = [\"x\"]", "is no name of a tenant");
    refused("[tenant.a]\nkeys = [\"x\"]\nweight = 1001", "expected 1 to 1000");
    refused("[tenant.a]\nkeys = [\"x\"]\nweight = 0", "nonzero");
    refused("[tenant.a]\nkeys = [\"x\"]\npriority = \"urgent\"", "unknown variant");
    refused("[tenant.a]\nkeys = [\"x\"]\nrequests_per_minute = 5", "unknown field");
}
