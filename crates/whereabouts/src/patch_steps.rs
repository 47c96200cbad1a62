//! Builds JSON patches (RFC 6902) of the steps that Berth uses: test, add, remove. A path is given by its names.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, TestOperation};
use serde_json::Value;

#[derive(Debug, Default)]
pub(super) struct PatchSteps(Vec<PatchOperation>);

fn pointer(path: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().copied())
}

impl PatchSteps {
    pub fn with_capacity(steps: usize) -> Self {
        Self(Vec::with_capacity(steps))
    }

    /// The patch fails unless that value is there; `null` if nothing may be there.
    pub fn test(&mut self, path: &[&str], value: impl Into<Value>) {
        let (path, value) = (pointer(path), value.into());
        let step = TestOperation { path, value };
        self.0.push(PatchOperation::Test(step));
    }

    pub fn add(&mut self, path: &[&str], value: impl Into<Value>) {
        let (path, value) = (pointer(path), value.into());
        let step = AddOperation { path, value };
        self.0.push(PatchOperation::Add(step));
    }

    pub fn remove(&mut self, path: &[&str]) {
        let path = pointer(path);
        self.0
            .push(PatchOperation::Remove(RemoveOperation { path }));
    }

    pub const fn len(&self) -> usize {
        self.0.len()
    }

    pub fn into_patch(self) -> Patch {
        Patch(self.0)
    }
}

#[cfg(test)]
impl PatchSteps {
    /// The steps as they are sent.
    pub fn to_json(&self) -> Vec<Value> {
        let json = |step| serde_json::to_value(step).unwrap();
        self.0.iter().map(json).collect()
    }
}
