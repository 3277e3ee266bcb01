from toolkit.commands.cli import main

main()
