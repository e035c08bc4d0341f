//! `verify`: checks of the graph and of every write.

use super::option::Opt;
use crate::stack::ValueError;
use crate::stack::kind::{Assembly, Build, BuildError, Kind};
use crate::verify::Verify;
use crate::Store;
use std::sync::Arc;

/// Options of the layer `verify`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyLayer {
    /// Number of operations between two checks of the graph; 0: it is never checked.
    pub every: u64,
}

impl Default for VerifyLayer {
    fn default() -> Self {
        Self { every: 100 }
    }
}

impl Kind for VerifyLayer {
    const NAME: &'static str = "verify";
    const ABOUT: &'static str =
        "checks the graph and every write; after a violation the mount is read-only";
    const OPTIONS: &'static [Opt<Self>] = &[Opt {
        form: "every=OPERATIONS",
        help: "check the whole graph after that many operations, or 0: never; 100",
        is_required: false,
        set: |verify, text| {
            let wrong = |_| ValueError::new(format_args!("'{text}' is not a number of operations"));
            verify.every = text.parse().map_err(wrong)?;
            Ok(())
        },
        get: |verify| (*verify != Self::default()).then(|| verify.every.to_string()),
    }];
    const BUILD: Build<Self> = Build::OrderedOnOrdered(Self::build);
}

impl VerifyLayer {
    fn build(
        &self,
        below: Arc<dyn Store>,
        assembly: &mut Assembly,
    ) -> Result<Arc<dyn Store>, BuildError> {
        let (Some(cache), Some(verifier)) = (&assembly.cache, &assembly.verifier) else {
            return Ok(below);
        };
        let (cache, verifier) = (cache.clone(), verifier.clone());
        Ok(Arc::new(Verify::new(below, 0, cache, verifier, self.every)))
    }
}
