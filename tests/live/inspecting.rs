//! Placeholder of the module inspecting.
