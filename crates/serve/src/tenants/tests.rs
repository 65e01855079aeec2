#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use super::*;

fn tenants(caches: &[Option<&str>]) -> Tenants {
    let config = |(index, cache): (usize, &Option<&str>)| TenantConfig {
        cache: cache.map(str::to_owned),
        keys: vec![format!("key-{index}"), format!("other-{index}")],
        ..TenantConfig::of_key(String::new())
    };
    Tenants::new(&caches.iter().enumerate().map(config).collect::<Vec<_>>())
}

#[test]
fn a_key_finds_its_tenant_and_nothing_else_finds_one() {
    let tenants = tenants(&[None, None, None]);
    for index in 0..3 {
        assert_eq!(tenants.find(&format!("key-{index}")), Some(index));
        assert_eq!(tenants.find(&format!("other-{index}")), Some(index));
    }
    for sent in ["", "key-", "key-3", "key-00", "KEY-0", "key-0 ", "key-0\0"] {
        assert_eq!(tenants.find(sent), None, "{sent:?}");
    }
}

#[test]
fn caches_are_shared_by_name_alone() {
    let tenants = tenants(&[None, Some("a"), Some("b"), Some("a"), None]);
    let scopes = (0..5).map(|index| tenants.scope(Client::Tenant(index)));
    assert_eq!(scopes.collect::<Vec<_>>(), [0, 1, 2, 1, 4].map(Some));
    assert_eq!(tenants.scope(Client::Connection(3)), None);
    assert_eq!(tenants.scope(Client::Host), None);
}
