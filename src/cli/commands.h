// Every subcommand, one file each. A row in the table of cli.cpp makes a command reachable.
#pragma once

#include <string>
#include <vector>

namespace bhyt::cli {

using Args = std::vector<std::string>;  // without "bhyt NAME"

int cmd_pretrain(const Args& args);
int cmd_sft(const Args& args);
int cmd_generate(const Args& args);
int cmd_chat(const Args& args);
int cmd_eval(const Args& args);
int cmd_perplexity(const Args& args);
int cmd_forward(const Args& args);
int cmd_bench(const Args& args);
int cmd_analyze(const Args& args);
int cmd_tokenizer(const Args& args);
int cmd_data(const Args& args);
int cmd_convert(const Args& args);
int cmd_info(const Args& args);
int cmd_report(const Args& args);
int cmd_sweep(const Args& args);
int cmd_reproduce(const Args& args);
int cmd_plan(const Args& args);
int cmd_launch(const Args& args);

void check_bench(const Args& args);  // UsageError for what cmd_bench does not know; measures nothing

}  // namespace bhyt::cli
