"""Integrations with other frameworks. Each imports its framework, which tenure does not depend on."""
