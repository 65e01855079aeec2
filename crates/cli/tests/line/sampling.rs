//! Biases and seeds, as they are typed.

use super::*;

#[test]
fn a_bias_is_a_token_a_sign_and_a_number() {
    assert_eq!(bias("15043+1.5".into()), Ok((Token(15043), 1.5)));
    assert_eq!(bias("15043-1e1".into()), Ok((Token(15043), -10.0)));
    assert_eq!(bias("7-inf".into()), Ok((Token(7), f32::NEG_INFINITY)));
    for text in ["15043", "+1", "a+1", "7=1", "7+x", "-1+2"] {
        assert_eq!(bias(text.into()), Err(ConfigError::Bias { text: text.into() }));
    }
}

#[test]
fn random_seeds_differ_and_are_short() {
    assert_ne!(random_seed(), random_seed());
    assert!(random_seed() <= u64::from(u32::MAX));
}
