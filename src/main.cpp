// The program: everything is in cli/.
#include "cli/cli.h"

int main(int argc, char** argv) { return bhyt::cli::run(argc, argv); }
