"""Every block of code in README, tutorial and guides is executed by a test, which is named here."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.pages import PAGES, all_blocks
from tools.generated import ROOT

README = "tests/project/test_readme.py"
GUIDES = "tests/project/test_guides.py"
SHELL = "tests/project/test_shell_blocks.py"
CLEAN = "tests/project/test_clean_install.py"
INSTALLED = f"{CLEAN}::test_the_commands_of_the_tutorial_run_where_only_the_wheel_is_installed"
RESTORED = "tests/stores/postgres/test_restored_dump.py"
DEPLOYMENT = "tests/project/test_deployment.py"
WORKER_OF_THE_PAGE = f"{DEPLOYMENT}::test_the_worker_of_the_page_starts_and_stops"
TRACES = "tests/observe/test_page.py"
SQL = "tests/stores/postgres/test_public_functions.py"
ROLES = "tests/stores/postgres/test_roles.py::test_the_commands_of_the_page_create_roles_that_can_be_used"
ENGINES = "tests/cli/test_engines.py::test_the_commands_of_the_guide_serve_an_engine_that_runs_a_job"
EXPORT = "tests/cli/test_export.py::test_the_commands_of_the_page_on_exports_work"
SCHEDULES = "tests/client/test_schedules.py"
TRANSACTIONS = "tests/stores/user_connections/enqueue/test_docs.py"
WEBHOOKS = "tests/inbox/test_page.py"
GOLDEN = f"{SHELL}::test_the_commands_of_the_guide_to_golden_files_print_what_it_shows"

EXECUTED_BY: dict[str, list[tuple[str, str]]] = {
    "README.md": [
        ("", f"{README}::test_make_demo_runs_the_demo"),
        ("python", f"{README}::test_the_quickstart_works_as_it_is_written"),
        ("", f"{README}::test_the_quickstart_works_as_it_is_written"),
        ("python", f"{README}::test_the_quickstart_works_as_it_is_written"),
        ("python", f"{README}::test_the_payment_of_the_readme_is_booked_once"),
        ("python", f"{README}::test_the_workflow_of_the_readme_works_as_it_is_written"),
        ("", f"{README}::test_the_commands_for_developers_are_there"),
    ],
    "tutorial.md": [(language, INSTALLED) for language in ("sh", "python", "python", "sh", "sh", "sh")],
    "celery.md": [],
    "database_roles.md": [("sh", ROLES), ("", ROLES)],
    "deployment.md": [
        ("ini", WORKER_OF_THE_PAGE),
        ("dockerfile", f"{DEPLOYMENT}::test_what_the_image_installs_is_enough_for_its_worker"),
        ("yaml", WORKER_OF_THE_PAGE),
        ("sh", f"{DEPLOYMENT}::test_the_grants_of_the_page_are_accepted"),
    ],
    "django.md": [
        ("python", f"{GUIDES}::test_the_code_of_the_guide_to_django_works_in_a_project"),
        ("", f"{GUIDES}::test_the_commands_of_the_guide_to_django_migrate_and_start_a_worker"),
        ("python", f"{GUIDES}::test_the_code_of_the_guide_to_django_works_in_a_project"),
        ("python", f"{GUIDES}::test_the_code_of_the_guide_to_django_works_in_a_project"),
    ],
    "engines.md": [("python", ENGINES), ("", ENGINES), ("", ENGINES)],
    "enqueuing.md": [("python", f"{README}::test_the_program_of_a_guide_prints_what_its_text_says")],
    "errors.md": [("python", f"{README}::test_the_program_of_a_guide_prints_what_its_text_says")],
    "export.md": [("sh", EXPORT), ("python", EXPORT), ("sh", EXPORT)],
    "fastapi.md": [
        (language, f"{GUIDES}::test_the_web_application_of_the_guide_enqueues_and_shows_jobs")
        for language in ("python", "sh", "python")
    ],
    "golden.md": [
        ("console", GOLDEN),
        ("console", GOLDEN),
        ("python", f"{GUIDES}::test_the_test_of_the_guide_to_golden_files_checks_one"),
    ],
    "jobs.md": [("python", f"{README}::test_the_program_of_a_guide_prints_what_its_text_says")],
    "limits.md": [],
    "observability.md": [
        ("console", f"{SHELL}::test_the_workers_of_the_page_start_serve_their_metrics_and_stop"),
        ("python", f"{TRACES}::test_a_separate_program_serves_its_metrics"),
        ("python", f"{TRACES}::test_the_traces_of_the_page_are_made"),
        ("json", f"{SHELL}::test_the_line_of_the_log_that_the_page_shows_is_written"),
        ("python", f"{TRACES}::test_the_filter_of_the_page_can_be_set_up"),
        ("python", f"{TRACES}::test_the_middleware_for_sentry_reports_the_error_with_its_job"),
    ],
    "operations.md": [
        ("sh", f"{RESTORED}::test_a_log_rebased_by_the_guide_is_read_in_the_order_that_it_had"),
        ("sh", f"{SHELL}::test_the_workers_of_the_page_start_serve_their_metrics_and_stop"),
        ("sh", f"{SHELL}::test_the_commands_that_watch_show_jobs_until_they_are_interrupted"),
        ("python", f"{GUIDES}::test_the_settings_and_profiles_of_the_guide_to_operations_can_be_declared"),
        ("python", f"{GUIDES}::test_the_settings_and_profiles_of_the_guide_to_operations_can_be_declared"),
    ],
    "outbox.md": [
        ("python", f"{GUIDES}::test_the_endpoint_of_the_guide_to_the_outbox_receives_the_message"),
        ("python", f"{GUIDES}::test_the_endpoint_of_the_guide_to_the_outbox_receives_the_message"),
    ],
    "plans.md": [("python", f"{README}::test_the_guide_to_plans_works_as_it_is_written")] * 2,
    "queues.md": [
        ("python", f"{README}::test_the_examples_of_the_page_on_queues_work"),
        ("", f"{SHELL}::test_the_commands_of_the_guide_to_queues_work"),
    ],
    "schedules.md": [
        ("python", f"{SCHEDULES}::test_the_examples_of_the_page_on_schedules_work"),
        ("python", f"{SCHEDULES}::test_the_examples_of_the_page_on_schedules_work"),
        ("console", f"{SCHEDULES}::test_every_command_on_the_page_can_be_called"),
    ],
    "sql.md": [
        ("sql", f"{SQL}::test_the_calls_of_the_guide_enqueue_and_signal"),
        ("sql", f"{SQL}::test_the_guide_has_the_strict_profile"),
        ("sql", f"{SQL}::test_a_trigger_enqueues_in_the_transaction_of_its_row"),
        ("js", f"{SQL}::test_the_call_of_the_guide_in_javascript_enqueues"),
        ("sh", f"{SQL}::test_the_grants_of_the_guide_are_those_of_a_caller"),
    ],
    "sqlalchemy.md": [("python", f"{GUIDES}::test_the_program_with_sqlalchemy_commits_jobs_with_its_rows")] * 3,
    "testing.md": [
        ("python", f"{GUIDES}::test_the_tests_of_the_guide_to_testing_pass"),
        ("python", f"{GUIDES}::test_the_tests_of_the_guide_to_testing_pass"),
        ("python", f"{GUIDES}::test_the_tests_of_the_guide_to_testing_pass"),
        ("python", f"{GUIDES}::test_the_history_of_the_guide_to_testing_is_checked"),
    ],
    "transactions.md": [("python", f"{TRANSACTIONS}::test_the_page_works_on_postgres")] * 3,
    "webhooks.md": [
        ("python", f"{WEBHOOKS}::test_the_sender_of_the_guide_delivers_to_the_example"),
        ("json", f"{WEBHOOKS}::test_the_event_that_the_guide_shows_is_the_one_that_is_sent"),
        ("", f"{WEBHOOKS}::test_the_webhook_of_the_guide_is_created_and_tried"),
        ("bash", f"{WEBHOOKS}::test_the_webhook_of_the_guide_is_created_and_tried"),
        ("python", f"{WEBHOOKS}::test_the_receiver_of_the_guide_runs"),
    ],
    "workflows.md": [
        *[("python", f"{README}::test_the_guide_to_workflows_works_as_it_is_written")] * 8,
        ("", f"{GUIDES}::test_the_calls_of_the_guide_to_workflows_fork_a_run"),
    ],
}
"""The language of each block of a page, in their order, and the test that executes it."""

NOT_EXECUTED = {
    "README.md": {
        "make test": "it is what runs the tests; `--dry-run` shows that make knows it",
        "make test-deep": "it is what runs the tests; `--dry-run` shows that make knows it",
    },
    "tutorial.md": {
        "pip install": "the wheel of this repository is installed instead",
        "sleep 2": "the test waits until the job runs instead",
        "kill -9": "the test sends the signal itself",
    },
    "deployment.md": {
        "FROM": "an image needs a running Docker; its RUN and CMD are executed without one",
        "apiVersion": "a pod needs a cluster; its args and its probe are executed without one",
        "[Unit]": "a unit needs systemd as the first process; it is verified, and its ExecStart executed",
    },
    "engines.md": {"pip install": "the tests' environment has it; an installed wheel is the subject of other tests"},
    "observability.md": {
        "$ pip install": "the tests' environment has it; an installed wheel is the subject of other tests"
    },
}
"""Lines of these blocks that are not executed as they are, and why."""


def test_every_page_is_listed() -> None:
    assert set(EXECUTED_BY) == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_has_a_test_that_executes_it(page: str) -> None:
    assert [language for language, _ in EXECUTED_BY[page]] == [language for language, _ in all_blocks(page)]
    for _, test in EXECUTED_BY[page]:
        path, _, name = test.partition("::")
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), test
        assert page.removesuffix(".md") in source, f"{path} does not read {page}"


@pytest.mark.parametrize("page", PAGES)
def test_every_fence_of_the_page_belongs_to_a_block_that_is_found(page: str) -> None:
    """An indented block, or one with words after its language, would not be."""
    text = PAGES[page].read_text(encoding="utf-8")
    assert len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)) == 2 * len(all_blocks(page))


@pytest.mark.parametrize("page", PAGES)
def test_the_extras_that_the_page_installs_exist(page: str) -> None:
    known = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for extras in re.findall(r"pip install [^\n]*tenure\[([\w,]+)\]", PAGES[page].read_text(encoding="utf-8")):
        assert set(extras.split(",")) <= known


@pytest.mark.parametrize("page", NOT_EXECUTED)
def test_the_lines_that_are_not_executed_are_on_the_page(page: str) -> None:
    lines = [line for _, code in all_blocks(page) for line in code.splitlines()]
    for beginning, reason in NOT_EXECUTED[page].items():
        assert any(line.startswith(beginning) for line in lines), beginning
        assert reason
