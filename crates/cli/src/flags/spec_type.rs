//! Drafters by name.

use forerun_decode::DrafterKind;
use forerun_hub::HeadKind;

/// What drafts, by our names; llama.cpp's are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum SpecType {
    /// No drafts: plain decoding
    None,
    /// The draft model, or draft head, of --spec-draft-model
    #[value(alias = "draft-simple")]
    DraftModel,
    /// The EAGLE-3 head of --spec-draft-model, which reads the target's hidden states
    DraftEagle3,
    /// The target's own head for multi-token prediction
    DraftMtp,
    /// The DFlash or DSpark head of --spec-draft-model, which drafts a block in one pass
    #[value(alias = "draft-dspark")]
    DraftDflash,
    /// The tokens that followed the last n-gram when it last occurred in the sequence
    #[value(alias = "ngram-simple")]
    Ngram,
    /// The tokens that most often followed the longest suffix that occurred before
    Suffix,
    /// The text of --prediction, or of the prompt, with the changes the output has made to it
    Edit,
}

impl SpecType {
    /// The files that it may be in, beside the target's.
    pub(super) fn head_files(self) -> &'static [HeadKind] {
        match self {
            Self::DraftEagle3 => &[HeadKind::Eagle3],
            Self::DraftMtp => &[HeadKind::Mtp],
            Self::DraftDflash => &[HeadKind::Dspark, HeadKind::Dflash],
            _ => &[],
        }
    }

    /// Whether it has a model.
    pub(super) fn is_model(self) -> bool {
        matches!(self, Self::DraftModel | Self::DraftEagle3 | Self::DraftMtp | Self::DraftDflash)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::DraftModel => DrafterKind::DraftModel.name(),
            Self::DraftEagle3 => DrafterKind::Eagle3.name(),
            Self::DraftMtp => DrafterKind::Mtp.name(),
            Self::DraftDflash => DrafterKind::Dflash.name(),
            Self::Ngram => DrafterKind::Ngram.name(),
            Self::Suffix => DrafterKind::Suffix.name(),
            Self::Edit => DrafterKind::Edit.name(),
        }
    }
}
