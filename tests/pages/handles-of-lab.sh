echo 20.500.LAB/hello >handles.txt
