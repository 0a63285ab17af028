"""Which tests of the real-CLI suite show which behaviour, and what README says when they pass.

Tests are named as in `test_claude.py` for Claude, and so on; those in a file for all CLIs start with the file's name.
A name stands for all cases of that test (for that CLI), `name[400` for those whose id begins with `400`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CLIS = {"claude": "Claude Code", "gemini": "Gemini CLI", "codex": "Codex", "opencode": "OpenCode"}
YES = "yes"


@dataclass(frozen=True)
class Shown:
    """A cell of the table: what it says if all these tests have passed."""

    tests: tuple[str, ...]
    says: str = YES


def by(*tests: str, says: str = YES) -> Shown:
    """Shown by these tests."""
    return Shown(tests, says)


def on_all_four(*tests: str) -> dict[str, Shown]:
    """Shown by tests of a file that runs all four CLIs."""
    return {cli: by(*tests) for cli in CLIS}


def api_error(status: int) -> dict[str, Shown]:
    """An HTTP error of the API."""
    return {
        "claude": by(f"test_an_api_error_is_told_once_in_the_vendors_words[{status}"),
        "gemini": by(f"test_an_api_error_is_told_once_with_its_kind_and_the_apis_words[{status}"),
        "codex": by(f"test_an_error_of_the_api_is_told_once_with_its_cause[{status}"),
        "opencode": by(f"test_an_api_error_is_told_once_in_its_own_words[{status}"),
    }


CLAUDE_TOOLS = by("test_thinking_and_parallel_tools_that_work_and_fail")
GEMINI_TOOLS = by("test_shell_tools_that_work_and_fail_in_parallel_and_one_after_another")
OPENCODE_TOOLS = by("test_tools_that_work_and_tools_that_fail_in_parallel")

BEHAVIOURS: Mapping[str, Mapping[str, Shown]] = {
    "plain text, with usage": {
        "claude": by("test_an_answer_streams_while_the_model_still_speaks"),
        "gemini": by("test_an_answer_streams_piece_by_piece_without_the_thoughts"),
        "codex": by("test_a_plain_answer_with_all_that_is_told_about_it"),
        "opencode": by("test_a_plain_answer_in_a_folder_without_git_costs_one_request"),
    },
    "streaming granularity": {
        "claude": by("test_an_answer_streams_while_the_model_still_speaks", says="as the model speaks"),
        "gemini": by("test_an_answer_streams_piece_by_piece_without_the_thoughts", says="as the model speaks"),
        "codex": by(
            "test_a_plain_answer_with_all_that_is_told_about_it",
            "test_messages_before_and_after_tools_are_all_in_the_answer",
            says="whole messages; the CLI prints no pieces",
        ),
        "opencode": by(
            "test_a_plain_answer_in_a_folder_without_git_costs_one_request",
            "test_text_arrives_when_its_step_ends_and_not_only_at_the_end",
            says="whole steps; the CLI prints no pieces",
        ),
    },
    "an answer of over 1 MB, slow reader": {
        "claude": by("test_an_answer_of_two_megabytes_arrives_whole_at_a_consumer_that_pauses"),
        "gemini": by("test_a_long_answer_arrives_whole_at_a_consumer_that_lags"),
        "codex": by("test_a_large_output_and_a_large_answer_arrive_whole"),
        "opencode": by("test_an_answer_of_two_megabytes_arrives_whole_although_nobody_reads_it_at_first"),
    },
    "shell tool that works": {
        "claude": CLAUDE_TOOLS,
        "gemini": GEMINI_TOOLS,
        "codex": by("test_messages_before_and_after_tools_are_all_in_the_answer"),
        "opencode": OPENCODE_TOOLS,
    },
    "shell tool that fails": {
        "claude": CLAUDE_TOOLS,
        "gemini": GEMINI_TOOLS,
        "codex": by("test_parallel_tools_keep_their_results_apart"),
        "opencode": OPENCODE_TOOLS,
    },
    "parallel tools": {
        "claude": CLAUDE_TOOLS,
        "gemini": GEMINI_TOOLS,
        "codex": by("test_parallel_tools_keep_their_results_apart"),
        "opencode": OPENCODE_TOOLS,
    },
    "sub-agents": {
        "claude": by(
            "test_two_parallel_sub_agents_are_kept_apart",
            "test_a_sub_agent_that_claude_itself_puts_into_the_background_is_waited_for",
            "test_turns_that_background_agents_begin_are_part_of_the_run",
            says="yes, each with its own tool calls",
        ),
        "gemini": by(
            "test_all_clis.py::test_a_sub_agent_of_gemini_is_one_call_and_its_words_are_not_the_answer",
            says="as one tool call; the CLI prints no more of them",
        ),
        "codex": by(
            "test_all_clis.py::test_a_sub_agent_of_codex_is_told_by_its_calls_and_its_words_are_not_the_answer",
            says="as tool calls; the CLI prints no more of them",
        ),
        "opencode": by(
            "test_a_sub_agents_words_are_the_result_of_its_call",
            says="as one tool call; the CLI prints no more of them",
        ),
    },
    "thinking": {
        "claude": CLAUDE_TOOLS,
        "gemini": by(
            "test_an_answer_streams_piece_by_piece_without_the_thoughts",
            says="not offered by the CLI: it does not print thoughts",
        ),
        "codex": by("test_a_plain_answer_with_all_that_is_told_about_it"),
        "opencode": by("test_a_plain_answer_in_a_folder_without_git_costs_one_request"),
    },
    "resume: id kept, earlier turn seen, own usage": {
        "claude": by("test_a_resumed_session_keeps_its_id_and_the_model_sees_the_earlier_turn"),
        "gemini": by(
            "test_a_resumed_run_knows_the_earlier_turn_and_keeps_id_and_permissions",
            "test_ten_resumes_over_many_minutes_with_other_runs_between_lose_nothing",
            "test_eight_sessions_begun_at_once_in_one_folder_can_all_be_resumed",
        ),
        "codex": by("test_a_resumed_run_knows_the_earlier_turns_and_counts_its_own_tokens"),
        "opencode": by("test_a_session_is_resumed_in_its_own_folder_with_this_runs_settings_and_usage"),
    },
    "unknown session is an error": {
        "claude": by("test_an_unknown_session_is_an_error_and_not_a_new_session"),
        "gemini": by("test_an_unknown_session_and_one_of_another_folder_are_not_found"),
        "codex": by("test_an_unknown_session_is_told_and_starts_no_new_one"),
        "opencode": by("test_an_unknown_session_is_an_error_and_no_new_one"),
    },
    "API error 400": api_error(400),
    "API error 401": api_error(401),
    "API error 429": api_error(429),
    "API error 500": api_error(500),
    "API error 529": api_error(529),
    "refused connection": {
        "claude": by("test_a_refused_connection_is_a_network_failure"),
        "gemini": by("test_a_refused_connection_is_a_network_failure"),
        "codex": by(
            "test_a_refused_connection_is_a_network_failure_when_nobody_wants_to_wait",
            "test_waiting_for_the_network_ends_with_the_timeout",
            says="yes; by default it waits until the timeout",
        ),
        "opencode": by(
            "test_a_refused_connection_is_told_after_opencodes_own_retries", says="yes, after 70 s of its own retries"
        ),
    },
    "hung model: abort": {
        "claude": by("test_an_abort_or_close_ends_claude_its_tools_and_their_children[abort-hung_model"),
        "gemini": by("test_a_hung_model_is_aborted_at_once"),
        "codex": by("test_a_hanging_model_can_be_aborted_from_another_thread"),
        "opencode": by("test_abort_ends_a_run_whose_model_hangs"),
    },
    "hung model: watchdog": {
        "claude": by("test_the_watchdog_ends_a_silent_claude_its_tools_and_their_children[hung_model"),
        "gemini": by("test_a_hung_model_is_given_up_by_the_watchdog"),
        "codex": by("test_a_model_that_hangs_is_ended_by_the_watchdog"),
        "opencode": by("test_the_watchdog_ends_a_run_whose_model_hangs"),
    },
    "hung model: `close()`": on_all_four("test_all_clis.py::test_close_ends_a_run_whose_model_hangs"),
    "abort and `close()`: shell tool and grandchildren gone in 3 s": {
        "claude": by(
            "test_an_abort_or_close_ends_claude_its_tools_and_their_children[abort-running_tool",
            "test_an_abort_or_close_ends_claude_its_tools_and_their_children[close-running_tool",
        ),
        "gemini": by("test_nothing_is_left_of_a_run_that_is_ended_during_a_shell_tool"),
        "codex": by("test_the_cli_its_tools_and_their_children_are_gone_when_the_run_is_ended"),
        "opencode": by("test_an_early_end_takes_a_running_tool_and_its_children_along"),
    },
    "permission denied is told": {
        "claude": by("test_by_default_claude_denies_what_nobody_can_approve"),
        "gemini": by("test_by_default_nothing_is_written_or_run_and_the_denials_are_told"),
        "codex": by(
            "test_a_refused_change_is_a_denial_though_the_stream_is_silent_about_it",
            "test_an_mcp_tool_that_nobody_can_approve_is_a_denial",
        ),
        "opencode": by(
            "test_a_permission_nobody_can_grant_is_a_failure_and_bypass_grants_it",
            says="yes; the CLI ends the run there, error `permission`",
        ),
    },
    "nasty prompts, byte for byte": {
        "claude": by("test_nasty_prompts_reach_the_model_byte_for_byte"),
        "gemini": by(
            "test_nasty_prompts_arrive_byte_for_byte",
            "test_what_looks_like_syntax_reaches_the_model_and_does_nothing",
            says="yes, but for one character before `/command` and `@file`, which does nothing then",
        ),
        "codex": by("test_prompts_arrive_byte_for_byte_and_once"),
        "opencode": by("test_nasty_prompts_arrive_byte_for_byte"),
    },
    "prompts of 20, 131.5 and 600 KB, once": {
        "claude": by("test_long_prompts_arrive_once"),
        "gemini": by("test_a_long_prompt_arrives_once"),
        "codex": by("test_prompts_arrive_byte_for_byte_and_once"),
        "opencode": by("test_a_long_prompt_arrives_once"),
    },
    "images": {
        "claude": by("test_an_image_reaches_the_model_and_the_prompt_beside_it_is_text"),
        "gemini": by("test_model_system_prompt_and_images_reach_the_model"),
        "codex": by("test_images_are_shown_to_the_model_in_new_and_resumed_threads"),
        "opencode": by("test_system_prompt_images_extra_arguments_and_a_nested_run"),
    },
    "system prompt, added to the CLI's own": {
        "claude": by("test_an_answer_streams_while_the_model_still_speaks"),
        "gemini": by("test_model_system_prompt_and_images_reach_the_model", says="yes, as words before the prompt"),
        "codex": by(
            "test_a_plain_answer_with_all_that_is_told_about_it",
            "test_a_thread_keeps_the_instructions_it_began_with",
            says="yes; a resumed thread keeps its first one",
        ),
        "opencode": by("test_system_prompt_images_extra_arguments_and_a_nested_run"),
    },
    "permission modes": {
        "claude": by(
            "test_by_default_claude_denies_what_nobody_can_approve",
            "test_read_only_holds_also_against_the_users_own_permissions",
            "test_accept_edits_and_bypass_write_and_are_not_remembered_by_a_session",
        ),
        "gemini": by(
            "test_by_default_nothing_is_written_or_run_and_the_denials_are_told",
            "test_read_only_reads",
            "test_accept_edits_writes_and_runs_nothing",
            "test_shell_tools_that_work_and_fail_in_parallel_and_one_after_another",
        ),
        "codex": by("test_what_a_permission_mode_lets_a_command_do"),
        "opencode": by(
            "test_a_permission_nobody_can_grant_is_a_failure_and_bypass_grants_it",
            "test_read_only_cannot_be_undone_by_the_folders_own_settings",
            "test_accept_edits_writes_where_the_users_settings_would_ask",
        ),
    },
    "inside another run of the same CLI": {
        "claude": by("test_a_resumed_session_keeps_its_id_and_the_model_sees_the_earlier_turn"),
        "gemini": by("test_a_run_inside_another_gemini_works"),
        "codex": by("test_it_runs_inside_another_codex"),
        "opencode": by("test_system_prompt_images_extra_arguments_and_a_nested_run"),
    },
    "MCP server (stdio)": on_all_four(
        "test_mcp.py::test_a_stdio_server_is_called_with_its_environment_and_its_errors_come_back",
        "test_mcp.py::test_a_server_that_is_slow_to_start_is_there_in_the_first_request",
    ),
    "MCP server (HTTP, with headers)": on_all_four("test_mcp.py::test_a_remote_server_gets_its_headers"),
    "broken MCP server is a warning": on_all_four(
        "test_mcp.py::test_a_server_that_cannot_be_used_is_a_warning_and_the_others_work"
    ),
    "MCP secrets are in no command line, log or readable file": on_all_four(
        "test_mcp.py::test_a_secret_stands_in_no_command_line_log_or_readable_file"
    ),
    "eight runs at once in one folder, each with its MCP server": on_all_four(
        "test_mcp.py::test_eight_runs_at_once_in_one_folder_each_see_their_own_server"
    ),
    "MCP: nothing left after abort and `close()`, the user's file comes back": on_all_four(
        "test_mcp.py::test_nothing_is_left_when_the_run_is_cut_short",
        "test_mcp.py::test_the_user_s_own_server_stays_callable_and_its_file_comes_back",
    ),
}
